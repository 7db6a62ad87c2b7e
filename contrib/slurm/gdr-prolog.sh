#!/usr/bin/env bash
# Slurm Prolog: refuses a job with GPUs on a node where GPUDirect RDMA does not work, and on one without
# gdr. Slurm drains a node whose prolog fails, and requeues the job.
#
#   GDR                  the command, where neither PATH nor /usr/local/bin nor /opt/gdr/bin has it
#   GDR_DOCTOR_OPTIONS   further options of `gdr doctor`, such as: --for nccl --skip acs.path
#   GDR_LIMIT_S          seconds after which the doctor is ended and the job starts all the same: 30
set -uo pipefail

# Slurm starts it without PATH.
export PATH="${PATH:-/usr/bin:/bin}:/usr/local/bin:/opt/gdr/bin"
gdr=${GDR:-gdr}

# An error of this script, not of the node: in the log, and where Slurm looks.
loud() {
    echo "gdr-prolog: $1" >&2
    logger -p user.err -t gdr-prolog -- "$1"
}

[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0

read -ra options <<<"${GDR_DOCTOR_OPTIONS:-}"
report=$(timeout "${GDR_LIMIT_S:-30}" "$gdr" --color never doctor --quiet --require-gpu "${options[@]}" 2>&1)
status=$?
case $status in
# 1 is a warning, and 3 says that too little is known: neither stops a job.
0 | 1 | 3) exit 0 ;;
2)
    logger -t gdr-prolog -- "job ${SLURM_JOB_ID:-?} refused: $report"
    exit 1
    ;;
126 | 127)
    # No node would be judged, so this is not passed over.
    loud "job ${SLURM_JOB_ID:-?} refused: $gdr cannot be started: $report"
    exit 1
    ;;
*)
    # A doctor that cannot run says nothing about the node.
    logger -t gdr-prolog -- "gdr doctor ended with $status: $report"
    exit 0
    ;;
esac
