"""Runs the program whose directory is the argument, fleet/merge_spark.py: stdin has a list of its arguments as JSON, and stdout gets a
list with null or the error of each. One session for all, as Java takes long to start."""

import json
import sys

sys.path.insert(0, sys.argv[1])
import merge_spark

errors = []
for arguments in json.load(sys.stdin):
    try:
        merge_spark.main(arguments)
        errors.append(None)
    except Exception as error:
        errors.append(str(error))
json.dump(errors, sys.stdout)
