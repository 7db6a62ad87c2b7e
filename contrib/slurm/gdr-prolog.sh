#!/usr/bin/env bash
# Slurm Prolog: refuses a job with GPUs on a node where GPUDirect RDMA does not work. Slurm drains a
# node whose prolog fails, and requeues the job.
#
#   GDR_DOCTOR_OPTIONS   further options of `gdr doctor`, such as: --for nccl --skip acs.path
#   GDR_LIMIT_S          seconds after which the doctor is ended and the job starts all the same: 30
set -uo pipefail

[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0

read -ra options <<<"${GDR_DOCTOR_OPTIONS:-}"
report=$(timeout "${GDR_LIMIT_S:-30}" gdr --color never doctor --quiet --require-gpu "${options[@]}" 2>&1)
status=$?
case $status in
# 1 is a warning, and 3 says that too little is known: neither stops a job.
0 | 1 | 3) exit 0 ;;
2)
    logger -t gdr-prolog -- "job ${SLURM_JOB_ID:-?} refused: $report"
    exit 1
    ;;
*)
    # A doctor that cannot run says nothing about the node.
    logger -t gdr-prolog -- "gdr doctor ended with $status: $report"
    exit 0
    ;;
esac
