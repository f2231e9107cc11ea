def check(t, v):
    t.ready(v.name)
    t.contains(t.out(v.name, "cat /proc/1/cmdline"), "3600", "the command line")
