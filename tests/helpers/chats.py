"""Chats."""


def user(text, **more):
    return [{"role": "user", "content": text, **more}]


def assistant(text):
    return [{"role": "assistant", "content": text}]
