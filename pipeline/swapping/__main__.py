"""The process of a rehearsal: python -m pipeline.swapping < WORDS > OUTCOME."""

from pipeline.swapping.rehearsed import main

if __name__ == "__main__":
    main()
