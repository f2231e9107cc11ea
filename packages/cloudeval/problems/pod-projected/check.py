# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("bundle")
    t.equal(
        t.out("bundle", f"cd {v.dir}; cat mode.txt; echo; cat token.txt; echo; cat labels").split("\n"),
        ["fast", "s3cret", 'app="bundle"'],
        "the three files",
    )
    t.equal(t.out("bundle", f"stat -L -c %a {v.dir}/token.txt"), "400", "the mode of token.txt")
    t.equal(t.out("bundle", f"ls {v.dir}").split(), ["labels", "mode.txt", "token.txt"], "the files")
