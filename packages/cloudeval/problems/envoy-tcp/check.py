# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.upstream(v.backend, "raw", plain_tcp=True)
    t.equal(t.tcp(v.port, "hello\n"), "raw hello\n", "the bytes that come back")
    t.equal(t.tcp(v.port, "GET / HTTP/9\r\n"), "raw GET / HTTP/9\r\n", "bytes that look like HTTP")
