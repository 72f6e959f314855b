"""`python -m service` is the command `revelator`."""

from service.cli.main import main

if __name__ == "__main__":
    main()
