#!/bin/sh
# Installs the servers that the benchmarks compare with, from Debian's packages. None of them is started, now or at boot.
set -eu
PATH="$PATH:/usr/sbin:/usr/local/sbin"
missing=""
for server in redis-server nats-server mosquitto rabbitmq-server; do
	command -v "$server" >/dev/null || missing="$missing $server"
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
	echo "To be compared with, these have to be installed:$missing" >&2
	exit 1
fi
if [ "$(id -u)" != 0 ]; then
	[ -t 0 ] || set -- --non-interactive
	sudo "$@" sh "$0" && exit
	echo "To be compared with, these have to be installed; on Debian: sudo apt-get install$missing" >&2
	exit 1
fi

echo "Installing$missing" >&2
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then # what Debian's packages ask before they start a service
	trap 'rm -f "$policy"' EXIT
	trap 'exit 130' INT TERM
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod +x "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # several words
apt-get --yes -qq install $missing >/dev/null || {
	apt-get -qq update
	apt-get --yes -qq install $missing >/dev/null
}
if command -v systemctl >/dev/null; then
	for unit in $missing epmd.socket epmd.service; do
		systemctl disable --quiet "$unit" 2>/dev/null || true
	done
fi
