"""Runs queries with DuckDB: the arguments are directories of tables, stdin has a list of [number of the directory, SQL] as JSON,
and stdout gets a list of {"columns", "rows"} or {"error"}."""

import json
import pathlib
import sys

import duckdb

connections = []
for directory in sys.argv[1:]:
    connection = duckdb.connect()
    for file in pathlib.Path(directory).glob("*.parquet"):
        path = str(file).replace("'", "''")
        connection.execute(f"CREATE VIEW {file.stem} AS SELECT * FROM read_parquet('{path}')")
    connections.append(connection)
answers = []
for number, sql in json.load(sys.stdin):
    try:
        result = connections[number].execute(sql)
        columns = [column[0] for column in result.description]
        answers.append({"columns": columns, "rows": result.fetchall()})
    except duckdb.Error as error:
        answers.append({"error": str(error)})
json.dump(answers, sys.stdout, default=float)
