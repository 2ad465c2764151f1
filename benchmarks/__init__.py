"""What steps cost, and how good the noise is: measured side by side, stored as JSON, shown in README.md.

python -m benchmarks            # everything, about a quarter of an hour on two cores
python -m benchmarks --quick    # everything, in short: to see that it runs
"""
