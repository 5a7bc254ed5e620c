"""`python -m anyformer` is the command `anyformer`."""

from anyformer.cli.main import main

if __name__ == "__main__":
    main(program="anyformer")
