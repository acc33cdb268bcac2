"""The simulator: the server's own scheduler on virtual time, with a model of what each step would cost.

It knows no device and no clock: `replica` plays the shell that stages.schedule is on a real server.
"""
