"""One file per format of a corpus; `registry` tells which one a file has."""
