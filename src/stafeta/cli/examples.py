"""Examples of each command, and the exit codes that it may have beside those of all commands."""

from stafeta.cli.exits import DATA_FOLDER, FATAL, MEANINGS, NOTHING, REFUSED, UNREACHABLE

_ASKING = (REFUSED, UNREACHABLE)  # of those that ask a broker
_REMEMBERING = (*_ASKING, DATA_FOLDER)  # and have a folder of their own

EXAMPLES: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "": (
        ("stafeta serve", "stafeta sub news/sport", "stafeta put news/sport '2:1'", "stafeta get news/sport"),
        tuple(MEANINGS),
    ),
    "serve": (("stafeta serve --data log --zeromq 9001", "stafeta serve --check"), (DATA_FOLDER, FATAL)),
    "put": (
        (
            "stafeta put news/sport '2:1'",
            "seq 1000 | stafeta put numbers --lines --kind int --create",
            "stafeta put pictures --raw --file logo.png --create",
        ),
        _REMEMBERING,
    ),
    "get": (
        (
            "stafeta get news/sport",
            "stafeta get 'news/#' weather --follow",
            "stafeta get news/sport --all --json",
            "stafeta get pictures --raw > logo.png",
        ),
        (*_REMEMBERING, NOTHING),
    ),
    "sub": (("stafeta sub news/sport", "stafeta sub 'news/#' weather --client second"), _REMEMBERING),
    "unsub": (("stafeta unsub news/sport",), _REMEMBERING),
    "watch": (
        ("stafeta watch 'news/#'", "stafeta watch news/sport --count 1 --wait 10"),
        (*_ASKING, NOTHING),
    ),
    "tail": (("stafeta tail news/sport -n 3", "stafeta tail 'news/#' -n 1"), (*_ASKING, NOTHING)),
    "topics": (("stafeta topics", "stafeta topics 'news/#' --json"), _ASKING),
    "stats": (("stafeta stats",), _ASKING),
    "clients": (("stafeta clients",), _ASKING),
    "subs": (("stafeta subs", "stafeta subs news/sport"), _ASKING),
    "shell": (("stafeta shell", "echo 'PUT news/sport 2:1' | stafeta shell"), _REMEMBERING),
    "check": (("stafeta check --data log", "stafeta check --data log --repair"), (DATA_FOLDER,)),
    "backup": (
        (
            "stafeta backup /mnt/backups/broker --data log --keep 7",
            "stafeta backup s3://bucket/broker --data log --rate 50MB",
            "stafeta backup --list /mnt/backups/broker",
            "stafeta backup --verify /mnt/backups/broker",
        ),
        (DATA_FOLDER,),
    ),
    "restore": (
        (
            "stafeta restore /mnt/backups/broker --data restored",
            "stafeta restore s3://bucket/broker --data restored --at 20261118T0800",
        ),
        (DATA_FOLDER,),
    ),
    "skip": (("stafeta skip news/sport 5-9",), _ASKING),
    "user": (("stafeta user add ann --allow 'consume news/#'",), ()),
    "user add": (
        (
            "stafeta user add ann --allow 'consume news/#'",
            "stafeta user add sensor --no-password --door devices",
        ),
        (),
    ),
    "user set": (("stafeta user set ann --role reader",), ()),
    "user passwd": (("stafeta user passwd ann",), ()),
    "user remove": (("stafeta user remove ann",), ()),
    "user list": (("stafeta user list",), ()),
    "token": (("stafeta token create ci --user ann",), ()),
    "token create": (("stafeta token create ci --user ann --expires 90d > ci.token",), ()),
    "token revoke": (("stafeta token revoke ci",), ()),
    "token list": (("stafeta token list",), ()),
    "role": (("stafeta role set reader --allow 'consume #'",), ()),
    "role set": (("stafeta role set reader --allow 'consume #' --deny 'read private/#'",), ()),
    "role remove": (("stafeta role remove reader",), ()),
    "role list": (("stafeta role list",), ()),
    "init": (("stafeta init secure --host broker.example",), ()),
    "keys": (("stafeta keys broker", "stafeta keys alice"), ()),
    "completion": (('eval "$(stafeta completion bash)"',), ()),
    "devices": (("stafeta devices server 12345",), ()),
    "devices server": (("stafeta devices server 12345",), (DATA_FOLDER, FATAL)),
    "devices subscriber": (("stafeta devices subscriber C1 127.0.0.1 12345",), (REFUSED, UNREACHABLE)),
    "devices publish": (
        ("stafeta devices publish 127.0.0.1 12345 hall/door float 21.50",),
        (REFUSED, UNREACHABLE),
    ),
    "bench": (("stafeta bench --seconds 2", "stafeta bench --door zeromq --rate 1000 --json"), _REMEMBERING),
    "spark": (("stafeta spark --subscribe 'news/#'", "stafeta spark --shell"), (REFUSED,)),
    "pipeline": (("stafeta pipeline list",), ()),
    "pipeline list": (("stafeta pipeline list",), ()),
    "pipeline run": (("stafeta pipeline run archive rollup", "stafeta pipeline run archive --once"), _ASKING),
    "pipeline sql": (("stafeta pipeline sql hot.sql --into hot",), _ASKING),
    "pipeline status": (("stafeta pipeline status",), (*_ASKING, NOTHING)),
    "pipeline stop": (("stafeta pipeline stop archive",), (*_ASKING, NOTHING)),
    "sql": (("stafeta sql 'SELECT topic, count(*) FROM messages GROUP BY topic'",), _ASKING),
}
