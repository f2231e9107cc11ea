# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
import json


def check(t, v):
    t.upstream(9001, "app")
    for path, status in (("/first", 200), ("/status/418", 418), ("/old/x", 200)):
        t.http(v.port, path, status=status)
        line = t.printed(rf'"{path}"')
        t.expect(line.startswith("{"), f"the log line is no JSON object: {line}")
        t.equal(json.loads(line), {"method": "GET", v.key: path, "code": status}, "the log line")
