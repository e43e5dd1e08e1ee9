"""Speed, measured side by side: `make bench` runs all and keeps the figures in `README.md` beside this file."""
