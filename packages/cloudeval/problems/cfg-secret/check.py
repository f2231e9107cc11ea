# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("user")
    t.logged("user", ":")
    t.equal(t.logs("user"), f"{v.user}:p@ss-{v.user}\n{v.user}", "what the pod reads")
    t.equal(t.get("secret/login")["type"], "kubernetes.io/basic-auth", "the type")
