#!/usr/bin/env bash
# A throw-away cluster on one machine, for tests: a login host and node1, node2, ..., with Slurm and ssh between them.
#
#   cluster.sh start                     a few seconds; on failure nothing is left
#   cluster.sh stop                      ends everything that runs on the hosts
#   cluster.sh exec HOST COMMAND...      as root on login, node1, ...; in the caller's folder, with its environment
#   cluster.sh cut HOST | heal HOST      pulls and plugs the network cable of a node
#   cluster.sh crash HOST | boot HOST    kills a node at once, and starts it again
#
# A host is a set of namespaces: network, host name, processes, IPC and mounts are its own, the file system is the
# machine's, but for /etc/hosts and /dev/shm. The cables end in a bridge on the login host, so that the machine's own
# network sees nothing of it. Needs root, and Debian's slurmctld, slurmd, slurm-client, munge, openssh-server, iproute2.
#
# Environment:
#   CLUSTER_ROOT    an empty folder, for configuration, state and logs (needed)
#   CLUSTER_NODES   number of nodes (default: 2)
#   CLUSTER_CPUS    CPUs that Slurm sees on a node, whatever the machine has (default: 4)
#   CLUSTER_GPUS    GPUs that Slurm sees on a node; none of them can be used (default: 2)
#   CLUSTER_OWNER   process whose end, however it comes, stops the cluster (default: none)
set -euo pipefail

die() {
  printf 'cluster: %s\n' "$*" >&2
  exit 1
}

root=${CLUSTER_ROOT:?an empty folder, for configuration, state and logs}
nodes=${CLUSTER_NODES:-2}
network=10.77.0
export SLURM_CONF=$root/etc/slurm.conf

hosts() { echo login && seq -f node%g "$nodes"; }
init_of() { cat "$root/hosts/$1.pid" 2>/dev/null || die "host $1 is not running"; }

address() {
  case $1 in
    login) echo "$network.1" ;;
    node[1-9]*) echo "$network.$((10 + ${1#node}))" ;;
    *) die "there is no host $1" ;;
  esac
}

# on HOST COMMAND...: runs it there; by pid 1 the host is known from outside
on() {
  local init
  init=$(init_of "$1")
  nsenter --target "$init" --net --uts --ipc --mount --pid --wd="$PWD" -- "${@:2}"
}

# within SECONDS WHAT COMMAND...: waits until the command succeeds
within() {
  local deadline=$((SECONDS + $1)) what=$2
  until "${@:3}" >/dev/null 2>&1; do
    [ $SECONDS -lt "$deadline" ] || die "$what: not within $1 seconds"
    sleep 0.1
  done
}

write_hosts() {
  echo '127.0.0.1 localhost'
  local host
  for host in $(hosts); do
    # torch asks for the IPv6 form too, and warns when there is none
    printf '%s %s\n::ffff:%s %s\n' "$(address "$host")" "$host" "$(address "$host")" "$host"
  done
}

write_slurm() {
  cat <<END
ClusterName=throwaway
SlurmctldHost=login
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# credentials live 10 seconds, so that a requeued job starts soon
AuthInfo=socket=$root/run/munge,cred_expire=10
StateSaveLocation=$root/state
SlurmdSpoolDir=$root/spool/%n
SlurmctldPidFile=$root/run/slurmctld.pid
SlurmdPidFile=$root/run/slurmd-%n.pid
SlurmctldLogFile=$root/log/slurmctld.log
SlurmdLogFile=$root/log/slurmd-%n.log
# no cgroups: the hosts share the machine's
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# nodes have the CPUs that this file says
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=0
PropagateResourceLimitsExcept=ALL
# a lost node is noticed soon, and comes back by itself
SlurmdTimeout=10
SlurmctldTimeout=10
MessageTimeout=10
TCPTimeout=2
ReturnToService=2
KillWait=5
GresTypes=gpu
NodeName=node[1-$nodes] CPUs=${CLUSTER_CPUS:-4} RealMemory=4096 Gres=gpu:${CLUSTER_GPUS:-2}
PartitionName=debug Nodes=ALL Default=YES DefaultTime=00:10:00 MaxTime=01:00:00
END
}

write_ssh() {
  ssh-keygen -q -t ed25519 -N '' -C user -f "$root/etc/user_key"
  ssh-keygen -q -t ed25519 -N '' -C host -f "$root/etc/host_key"
  local host key
  read -r -a key <"$root/etc/host_key.pub"
  for host in $(hosts); do
    echo "$host,$(address "$host") ${key[0]} ${key[1]}"
  done >"$root/etc/known_hosts"
  cat >"$root/etc/sshd_config" <<END
HostKey $root/etc/host_key
AuthorizedKeysFile $root/etc/user_key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
END
  cat >"$root/etc/ssh_config" <<END
IdentityFile $root/etc/user_key
IdentitiesOnly yes
UserKnownHostsFile $root/etc/known_hosts
StrictHostKeyChecking yes
BatchMode yes
LogLevel ERROR
END
}

configure() {
  mkdir -p "$root"/{etc,hosts,log,run,spool,state}
  chmod 755 "$root"
  write_hosts >"$root/etc/hosts"
  write_slurm >"$SLURM_CONF"
  # a GPU is any device file; nobody opens it
  echo "NodeName=node[1-$nodes] Name=gpu File=/dev/tty[1-${CLUSTER_GPUS:-2}]" >"$root/etc/gres.conf"
  write_ssh
  (umask 077 && head -c 1024 /dev/urandom >"$root/etc/munge.key")
}

boot() {
  local host=$1 unshare init ready=$root/hosts/$1.ready
  rm -f "$ready"
  # The host's pid 1 reaps orphans. When it dies, the kernel kills all that runs on the host.
  setsid unshare --net --uts --ipc --mount --propagation slave --pid --fork --kill-child --mount-proc bash -c '
    set -e
    hostname "$1"
    mount --bind "$2/etc/hosts" /etc/hosts
    mount --bind "$2/etc/ssh_config" /etc/ssh/ssh_config
    mount -t tmpfs -o mode=1777 shm /dev/shm
    ip link set lo up
    touch "$3"
    sleep infinity &
    while :; do wait; done' init "$host" "$root" "$ready" </dev/null >"$root/log/$host.log" 2>&1 &
  unshare=$!
  within 10 "$host: namespaces (see $root/log/$host.log)" test -e "$ready"
  init=$(tr -d ' ' <"/proc/$unshare/task/$unshare/children")
  echo "$init" >"$root/hosts/$host.pid"

  if [ "$host" = login ]; then
    on login ip link add switch type bridge forward_delay 0
    on login ip address add "$(address login)/24" dev switch
    on login ip link set switch up
    on login slurmctld
  else
    on login ip link delete "$host" 2>/dev/null || true # left by a host that crashed
    # inside the host, the other host's process id means nothing: from here, with the network of login only
    nsenter --target "$(init_of login)" --net ip link add "$host" type veth peer name eth0 netns "$init"
    on login ip link set "$host" master switch up
    on "$host" ip address add "$(address "$host")/24" dev eth0
    on "$host" ip link set eth0 up
    mkdir -p "$root/spool/$host" /run/sshd
    on "$host" /usr/sbin/sshd -f "$root/etc/sshd_config" -E "$root/log/sshd-$host.log" -o "PidFile=$root/run/sshd-$host.pid"
    on "$host" slurmd -N "$host"
  fi
}

crash() {
  local init
  init=$(init_of "$1")
  kill -KILL "$init"
  within 10 "$1: down" bash -c "! kill -0 $init"
  rm -f "$root/hosts/$1.pid"
}

all_idle() { [ "$(on login sinfo --noheader --Node --states=idle --format=%N | sort -u | wc -l)" -eq "$nodes" ]; }

start() {
  [ -z "$(ls -A "$root" 2>/dev/null)" ] || die "$root is not empty"
  trap stop EXIT
  configure
  munged --key-file="$root/etc/munge.key" --socket="$root/run/munge" --seed-file="$root/run/munged.seed" \
    --pid-file="$root/run/munged.pid" --log-file="$root/log/munged.log" --force 2>>"$root/log/munged.log"
  local host
  for host in $(hosts); do boot "$host"; done
  within 30 "idle nodes (see $root/log)" all_idle
  if [ -n "${CLUSTER_OWNER:-}" ]; then
    setsid bash -c 'tail --pid="$1" -f /dev/null; exec "$2" stop' watch "$CLUSTER_OWNER" "${BASH_SOURCE[0]}" \
      </dev/null >/dev/null 2>&1 &
    echo $! >"$root/run/watch.pid"
  fi
  trap - EXIT
}

stop() {
  local host
  for host in $(hosts | tac); do
    if [ -e "$root/hosts/$host.pid" ]; then crash "$host" || true; fi
  done
  if [ -e "$root/run/munged.pid" ]; then kill "$(cat "$root/run/munged.pid")" || true; fi
  # last, because it may be what called this
  if [ -e "$root/run/watch.pid" ]; then kill -- "-$(cat "$root/run/watch.pid")" || true; fi
}

case ${1:-} in
  start | stop) "$1" ;;
  exec) on "${@:2}" ;;
  cut) on "$2" ip link set eth0 down ;;
  heal) on "$2" ip link set eth0 up ;;
  crash | boot) "$1" "$2" ;;
  *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}" && exit 2 ;;
esac
