"""Runs SQL with DuckDB: stdin has a list of [variables, SQL] as JSON, and stdout gets a list with null or the error of each."""

import json
import sys

import duckdb

connection = duckdb.connect()
errors = []
for variables, sql in json.load(sys.stdin):
    try:
        for name, value in variables.items():
            connection.execute(f"SET VARIABLE {name} = $1", [value])
        connection.execute(sql)
        errors.append(None)
    except duckdb.Error as error:
        errors.append(str(error))
json.dump(errors, sys.stdout)
