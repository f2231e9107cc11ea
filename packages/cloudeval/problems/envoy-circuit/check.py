# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
import threading
import time


def check(t, v):
    t.upstream(9001, "app")
    t.http(v.port, "/", status=200)
    statuses = []

    def ask():
        statuses.append(t.http(v.port, "/slow/900").status)

    threads = [threading.Thread(target=ask) for _ in range(v.most + 4)]
    for thread in threads:
        thread.start()
        time.sleep(0.03)
    for thread in threads:
        thread.join()
    t.equal(
        (statuses.count(200), statuses.count(503)), (v.most + 1, 3), "the answers 200 and 503 of concurrent requests"
    )
