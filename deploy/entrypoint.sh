#!/bin/sh
# What the container image runs. It takes the variables and paths of the Service Bus emulator's image:
#
#   ACCEPT_EULA=Y        behave as the emulator: its namespace and its public key. duobus has no terms to accept.
#   CONFIG_PATH          configuration file; without it, or if there is no such file here, the emulator's place for it
#   EMULATOR_HTTP_PORT   port of management and health, 5300 unless given
#
# SQL_SERVER, MSSQL_SA_PASSWORD and SQL_WAIT_INTERVAL have no effect. Its own variables are DUOBUS_DATA and DUOBUS_CONFIG
# (data folder, and the place of the configuration file; the image sets both) and DUOBUS_TLS=off for no certificates.
#
#   duobus-container                 the server
#   duobus-container --tier basic    the server with options of `duobus serve`
#   duobus-container health          exit status 0 when a client can use the server
#   duobus-container queue list      any other command of duobus
set -eu

http_port=${EMULATOR_HTTP_PORT:-5300}

say() {
    echo "duobus-container: $*" >&2
}

if [ "${1:-}" = health ]; then
    exec python3 -c 'import sys, urllib.request
try:
    urllib.request.urlopen(sys.argv[1], timeout=4)
except OSError as error:
    sys.exit(str(error))' "http://127.0.0.1:$http_port/health"
fi

case "${1:-}" in
'' | -*) ;;
*) exec duobus "$@" ;;
esac

data=${DUOBUS_DATA:-/data}
if [ ! -d "$data" ] || [ ! -w "$data" ]; then
    say "The user $(id -u) cannot write to $data. Mount a volume there, or give the folder to that user: chown $(id -u) FOLDER"
    exit 1
fi

# Of two values for one option the later one counts, which is the user's. What excludes options of the user is left out,
# and so is what a settings file may say.
given=" $* ${DUOBUS_SETTINGS:+--settings} "
has() {
    case $given in
    *" $1 "* | *" $1="*) return 0 ;;
    esac
    return 1
}

set -- --http-port "$http_port" "$@"
if ! has --settings && ! has --join; then
    set -- --config-mode apply "$@"
fi

config=${DUOBUS_CONFIG:-/ServiceBus_Emulator/ConfigFiles/Config.json}
if [ -n "${CONFIG_PATH:-}" ] && [ -f "$CONFIG_PATH" ]; then
    config=$CONFIG_PATH
fi
if [ -d "$config" ]; then
    say "$config is a folder: the file that was to be mounted there did not exist. Remove both folders, and name a file."
    exit 1
elif [ -e "$config" ]; then
    set -- --config "$config" "$@"
else
    say "There is no $config, so the server starts with the entities that it has."
fi

if [ "${DUOBUS_TLS:-}" != off ] && ! has --settings && ! has --tls-cert; then
    set -- --tls-self-signed "$@"
fi
case "${ACCEPT_EULA:-}" in
[Yy] | [Yy][Ee][Ss]) set -- --emulator "$@" ;;
esac

if has --console; then
    # Nobody outside of the container would reach a console that listens on 127.0.0.1.
    has --console-host || set -- --console-host 0.0.0.0 "$@"
    # The console puts large uploads aside and keeps its undo files. A read-only root and a user without a home have no
    # place for these; the volume has.
    if [ -z "${TMPDIR:-}" ] && [ ! -w /tmp ]; then
        mkdir -p -m 0700 "$data/tmp"
        export TMPDIR="$data/tmp"
    fi
    if [ -z "${XDG_STATE_HOME:-}" ] && [ ! -w "${HOME:-/}" ]; then
        export XDG_STATE_HOME="$data/.local/state"
    fi
fi

# The container's own address is its network's; what is published of it, the container engine says.
exec duobus serve --data "$data" --host 0.0.0.0 "$@"
