"""The plain manifests of deploy/kubernetes: what the chart renders for each of its examples.

``python -m tests.deploy.manifests`` writes them anew.
"""

from __future__ import annotations

from tests.deploy.helm import EXAMPLES, ROOT, rendered, values_of

FOLDER = ROOT / "deploy" / "kubernetes"
HEAD = """\
# Rendered from deploy/helm with deploy/helm/examples/{example}.yaml; deploy/README.md says which
# Secret it needs. Change the chart, not this file.
"""


def manifest(example: str) -> str:
    lines = (line.rstrip() for line in rendered(*values_of(example)).splitlines())
    return HEAD.format(example=example) + "\n".join(lines) + "\n"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for example in EXAMPLES:
        (FOLDER / f"{example}.yaml").write_text(manifest(example), encoding="utf-8")


if __name__ == "__main__":
    main()
