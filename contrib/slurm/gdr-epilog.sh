#!/usr/bin/env bash
# Slurm Epilog: reports what a job left behind that stops the next one: lost GPUs, links that came down,
# errors of GPU and NIC in the kernel's log. It never drains: the next health check or prolog does.
#
#   GDR                  the command, where neither PATH nor /usr/local/bin nor /opt/gdr/bin has it
#   GDR_DOCTOR_OPTIONS   further options of `gdr doctor`, such as: --for nccl --skip acs.path
#   GDR_LIMIT_S          seconds after which the doctor is ended: 30
set -uo pipefail

# Slurm starts it without PATH.
export PATH="${PATH:-/usr/bin:/bin}:/usr/local/bin:/opt/gdr/bin"
gdr=${GDR:-gdr}

# An error of this script, not of the node: in the log, and where Slurm looks.
loud() {
    echo "gdr-epilog: $1" >&2
    logger -p user.err -t gdr-epilog -- "$1"
}

[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0

read -ra options <<<"${GDR_DOCTOR_OPTIONS:-}"
report=$(timeout "${GDR_LIMIT_S:-30}" "$gdr" --color never doctor --quiet "${options[@]}" 2>&1)
status=$?
case $status in
2) logger -t gdr-epilog -- "after job ${SLURM_JOB_ID:-?}: $report" ;;
126 | 127) loud "$gdr cannot be started: $report" ;;
esac
exit 0
