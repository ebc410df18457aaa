"""`python -m afterrun.serve.cli` is `afterrun`; `afterrun up --detach` starts itself so."""

from afterrun.serve.cli import main

if __name__ == "__main__":
    main(prog_name="afterrun")
