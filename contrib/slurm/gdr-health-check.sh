#!/usr/bin/env bash
# Slurm HealthCheckProgram: drains a node where GPUDirect RDMA does not work, and resumes it when it
# works again. A node that was drained for another reason is left alone.
#
#   HealthCheckProgram=/etc/slurm/gdr-health-check.sh
#   HealthCheckInterval=300
#   HealthCheckNodeState=ANY
#
#   GDR                  the command, where neither PATH nor /usr/local/bin nor /opt/gdr/bin has it
#   GDR_DOCTOR_OPTIONS   further options of `gdr doctor`, such as: --for nccl --skip acs.path
set -uo pipefail

# Slurm starts it without PATH.
export PATH="${PATH:-/usr/bin:/bin}:/usr/local/bin:/opt/gdr/bin"
gdr=${GDR:-gdr}

# An error of this script, not of the node: in the log, and where Slurm looks.
loud() {
    echo "gdr-health: $1" >&2
    logger -p user.err -t gdr-health -- "$1"
}

# The beginning of the reasons that this program sets, and that alone it takes away.
MARK=gdr:
# Slurm ends a health check after 60 s.
LIMIT_S=45

node=${SLURMD_NODENAME:-$(hostname -s)}
read -ra options <<<"${GDR_DOCTOR_OPTIONS:-}"
report=$(timeout "$LIMIT_S" "$gdr" --color never doctor --quiet --require-gpu "${options[@]}" 2>&1)
status=$?
state=$(scontrol --oneliner show node "$node") || exit 1

# Prints the reason of a drained node.
drained_for() {
    case $state in
    *State=*DRAIN*) sed -n 's/.* Reason=//p' <<<"$state" ;;
    esac
}

case $status in
2)
    [ -z "$(drained_for)" ] || exit 0
    # The first line is the verdict in a sentence.
    reason="$MARK $(head -n 1 <<<"$report" | cut -c 1-200)"
    logger -t gdr-health -- "$report"
    scontrol update NodeName="$node" State=DRAIN Reason="$reason"
    ;;
0 | 1)
    case $(drained_for) in
    "$MARK"*) scontrol update NodeName="$node" State=RESUME ;;
    esac
    ;;
126 | 127)
    # slurmd logs that its health check fails.
    loud "$gdr cannot be started: $report"
    exit 1
    ;;
*)
    # Too little is known, or the doctor cannot run: the state of the node stays.
    logger -t gdr-health -- "gdr doctor ended with $status: $(head -n 1 <<<"$report")"
    ;;
esac
