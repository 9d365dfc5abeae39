# Runs Postgres's programs in the order they are asked for on standard input, answering each order
# with its exit status, and stops Postgres when standard input ends: that is, when the process that
# started this one is gone, for whatever reason. Orders run one after the other, so that an end of
# input during a start is seen after the start, when there is something to stop.
#
# Arguments: the programs' directory, the cluster's, server options, `initdb` options (unquoted), and
# `keep` or `remove`.

# A terminal's or a service manager's signals are for the process that started this one. PIPE: the
# answer to an order may find nobody to read it.
trap '' INT TERM HUP PIPE

bin=$1 data=$2 options=$3 init_options=$4 at_end=$5
log=$data/server.log
stage=$data/initdb.new
owned=

init() {
  rm -rf -- "$stage" &&
    "$bin/initdb" -D "$stage" --encoding=UTF8 --locale="$1" --auth=trust --username=leasehold $init_options
}

# Whether the cluster's Postgres runs. A number in a stale postmaster.pid may by now belong to another
# program of the same user, and `pg_ctl stop` would interrupt that.
running() {
  "$bin/pg_ctl" status -D "$data" >/dev/null 2>&1 && read -r pid <"$data/postmaster.pid" || return 1
  [ -r "/proc/$pid/comm" ] || return 0
  read -r name <"/proc/$pid/comm" && case $name in postgres | postmaster) ;; *) return 1 ;; esac
}

# Two may stop the same server: this one, and that of a killed process. The one that comes too late to
# signal it fails, and has what it wanted.
stop() {
  ! running || "$bin/pg_ctl" stop -D "$data" -w -t "$2" -m "$1" || ! running
}

# In a child, so that Postgres does not inherit the ignored signals.
start() (
  trap - INT TERM HUP PIPE
  exec "$bin/pg_ctl" start -D "$data" -w -t 300 -l "$log" -o "$options -c port=$1"
)

while read -r order argument; do
  case $order in
    init) init C.UTF-8 || init C ;;
    start)
      start "$argument"
      status=$?
      [ ! -r "$data/postmaster.pid" ] || read -r owned <"$data/postmaster.pid"
      (exit "$status")
      ;;
    stop) stop "$argument" 300 ;;
  esac </dev/null >>"$log" 2>&1
  echo "$?"
done

# By now another program may have taken over the directory, stopped our Postgres and started its own.
if running && [ "$pid" = "$owned" ]; then
  if [ "$at_end" = remove ]; then stop immediate 60; else stop fast 60 || stop immediate 60; fi
fi </dev/null >/dev/null 2>&1
if [ "$at_end" = remove ]; then rm -rf -- "$data" 2>/dev/null; fi
