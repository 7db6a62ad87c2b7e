#!/usr/bin/env bash
# Slurm Epilog: reports what a job left behind that stops the next one: lost GPUs, links that came down,
# errors of GPU and NIC in the kernel's log. It never drains: the next health check or prolog does.
#
#   GDR_DOCTOR_OPTIONS   further options of `gdr doctor`, such as: --for nccl --skip acs.path
#   GDR_LIMIT_S          seconds after which the doctor is ended: 30
set -uo pipefail

[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0

read -ra options <<<"${GDR_DOCTOR_OPTIONS:-}"
report=$(timeout "${GDR_LIMIT_S:-30}" gdr --color never doctor --quiet "${options[@]}" 2>&1)
status=$?
[ "$status" != 2 ] || logger -t gdr-epilog -- "after job ${SLURM_JOB_ID:-?}: $report"
exit 0
