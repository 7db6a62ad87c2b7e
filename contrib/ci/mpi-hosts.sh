#!/bin/sh
# Starts a job of Open MPI or MPICH on the hosts of `gdr net`, with an empty folder in MPI_HOSTS:
#
#   MPI_HOSTS=$(mktemp -d) gdr net --hosts 4 -- mpi-hosts.sh mpirun -n 16 ./job
#
# host0 runs mpirun. To it this script is ssh: a host reads from one FIFO what to run, and answers by another.
set -eu

make_fifos() {
    for end in command status; do
        mkfifo "$MPI_HOSTS/$1.$end" 2>/dev/null || [ -p "$MPI_HOSTS/$1.$end" ]
    done
}

if [ -n "${MPI_AGENT-}" ]; then
    while [ "${1#-}" != "$1" ]; do shift; done
    host=$1
    shift
    if [ "$host" = "$(hostname)" ]; then
        exec sh -c "$*"
    fi
    make_fifos "$host"
    echo "$*" >"$MPI_HOSTS/$host.command"
    read -r status <"$MPI_HOSTS/$host.status"
    exit "$status"
fi

if [ "$RANK" != 0 ]; then
    host=$(hostname)
    make_fifos "$host"
    # The end of the job, where no rank ran here.
    read -r command <"$MPI_HOSTS/$host.command" || exit 0
    status=0
    sh -c "$command" || status=$?
    # mpirun may have ended first.
    timeout 1 sh -c "echo $status >'$MPI_HOSTS/$host.status'" || true
    exit "$status"
fi

seq -f 'host%g' 0 $((WORLD_SIZE - 1)) >"$MPI_HOSTS/names"
sed "s/$/ slots=128/" "$MPI_HOSTS/names" >"$MPI_HOSTS/slots"
agent=$(readlink -f "$0")
export MPI_AGENT=yes
export OMPI_MCA_plm_rsh_agent="$agent" OMPI_MCA_plm_rsh_no_tree_spawn=1
export OMPI_MCA_orte_default_hostfile="$MPI_HOSTS/slots"
# From Open MPI 5 on.
export PRTE_MCA_plm_ssh_agent="$agent" PRTE_MCA_plm_ssh_no_tree_spawn=1
export PRTE_MCA_prte_default_hostfile="$MPI_HOSTS/slots"
export HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXEC="$agent" HYDRA_HOST_FILE="$MPI_HOSTS/names"
status=0
"$@" || status=$?
while read -r host; do
    # A host that waits reads nothing.
    [ "$host" = host0 ] || timeout 1 sh -c ": >'$MPI_HOSTS/$host.command'" 2>/dev/null || true
done <"$MPI_HOSTS/names"
exit "$status"
