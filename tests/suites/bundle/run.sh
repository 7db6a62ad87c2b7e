#!/usr/bin/env bash
# Tests and measures GPU memory mappings on a machine with an NVIDIA GPU. It needs only bash and the
# NVIDIA driver; steps whose program is missing are skipped and listed.
#
#   OUT=results ./run.sh     every step's output and summary.tsv go to $OUT (./results)
#   ./run.sh 'NCCL|perf'     only the steps whose names this extended expression finds
#
# Exit status: 0 when no step failed.
set -uo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
GDR=$HERE/bin/gdr
STEPS=${1:-}
OUT=${OUT:-results}
mkdir -p "$OUT" || exit 2
OUT=$(cd "$OUT" && pwd)
# `gdr run` and `gdr trace` find their libraries by it.
export GDR_VERBS_LIBRARY=$HERE/verbs/libgdr-verbs.so
export HERE GDR OUT
# Copies of the bundle may have lost the links.
for name in libgdrapi.so.2 libgdrapi.so; do
    [ -e "$HERE/lib/$name" ] || ln -sf libgdrapi.so.2.6 "$HERE/lib/$name"
done
[ -e "$HERE/verbs/shadow/libibverbs.so" ] || ln -sf libibverbs.so.1 "$HERE/verbs/shadow/libibverbs.so"
export LD_LIBRARY_PATH=$HERE/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# Ends a step as skipped. The last line on standard error is the reason.
skip() {
    echo "$1" >&2
    exit 77
}

with_program() {
    command -v "$1" >/dev/null || skip "$1 is not installed"
    "$@"
}

# gdr exits with 1 for a warning: it works, with a limitation.
a_warning_is_fine() {
    "$@"
    local status=$?
    [ "$status" != 1 ] || { echo "ended with a warning" >&2; status=0; }
    return $status
}

# Runs a program of the bundle as a user without privileges.
without_privileges() {
    [ "$(id -u)" = 0 ] || skip "not root: the other steps ran without privileges already"
    # The bundle may be in a folder that only root can read.
    local program folder
    folder=$(mktemp -d) && chmod 755 "$folder" && cp "$1" "$folder/" || return 1
    program=$folder/${1##*/}
    shift
    cd "$folder" || return 1
    if command -v setpriv >/dev/null; then
        setpriv --reuid 65534 --regid 65534 --clear-groups "$program" "$@"
    elif command -v python3 >/dev/null; then
        python3 -c 'import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.execv(sys.argv[1], sys.argv[1:])' "$program" "$@"
    elif command -v su >/dev/null; then
        su -s /bin/bash nobody -c 'exec "$0" "$@"' -- "$program" "$@"
    else
        skip "no setpriv, python3 or su to drop privileges with"
    fi
    local status=$?
    rm -rf "$folder"
    return $status
}
# nccl NAME LARGEST GPU GPU RUNNER...: two ranks of NCCL's allreduces up to a size, each as a host of its
# own, so that the bytes go through the network. Each rank's log is NAME.rank.RANK.log. With
# BY=library the ranks call NCCL's own functions, else PyTorch's. With ALLOCATE=allocate another thread
# of each rank allocates and frees GPU memory all the time.
nccl() {
    local name=$1 largest=$2 gpus=("$3" "$4") rank ranks=() status=0
    shift 4
    command -v python3 >/dev/null && python3 -c 'import torch' 2>/dev/null || skip "no PyTorch"
    local port=$((20000 + RANDOM % 10000))
    for rank in 0 1; do
        env RANK=$rank WORLD_SIZE=2 DEVICE="${gpus[rank]}" MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            NCCL_HOSTID="host$rank" NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_SOCKET_IFNAME=lo \
            NCCL_IB_GID_INDEX=0 NCCL_NET_GDR_LEVEL=SYS NCCL_GIN_TYPE=2 \
            NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET NCCL_DEBUG_FILE="$OUT/$name.rank.$rank.log" \
            "$@" python3 "$HERE/nccl.py" "$largest" "${BY:-torch}" ${ALLOCATE:+"$ALLOCATE"} \
            >"$OUT/$name.rank.$rank.jsonl" &
        ranks+=($!)
    done
    for rank in "${ranks[@]}"; do
        wait "$rank" || status=$?
    done
    cat "$OUT/$name.rank.0.jsonl"
    grep -hoE '(\[[a-z]+\] )?via NET/[A-Za-z/0-9]+' "$OUT/$name".rank.*.log | sort | uniq -c
    return $status
}

# As `nccl`, through gdr's devices; fails unless NCCL's log says that the device uses GPU memory.
nccl_direct() {
    nccl "$@" || return $?
    grep -q 'via NET/IB/0/GDRDMA' "$OUT/$1".rank.*.log ||
        { echo "NCCL's log does not say NET/IB/0/GDRDMA" >&2; return 1; }
}

# Fails unless the log of `nccl NAME` says that NCCL uses GDRCopy's interface.
nccl_gdrcopy() {
    grep -hoE 'GDRCOPY enabled.*' "$OUT/$1".rank.*.log ||
        { echo "NCCL's log does not say GDRCOPY enabled" >&2; return 1; }
}

# traced NAME COMMAND...: a command whose `gdr trace` writes its reports to traced/NAME. They are
# compared with what the engines of gdr's devices have counted.
traced() {
    local folder=$OUT/traced/$1
    shift
    rm -rf "$folder" && mkdir -p "$folder" || return 1
    GDR_VERBS_COUNTERS=$folder "$@" || return $?
    cat "$folder"/*.counters
    "$HERE/bin/xtask" traced "$folder"
}

# perf GPU OF SERVER, VERB, OPTIONS OF THE CLIENT: two processes. SERVER has further options of the server.
perf() {
    local gpu=$1 server status i
    local log=$OUT/perf-server.$$.log
    shift
    # shellcheck disable=SC2086 # It is a list of options.
    "$GDR" perf "$1" --bind 127.0.0.1 --require-gpu --gpu "$gpu" ${SERVER:-} >"$log" 2>&1 &
    server=$!
    for ((i = 0; i < 300; i++)); do
        grep -q '^waiting' "$log" && break
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    "$GDR" perf "$1" 127.0.0.1 --require-gpu "${@:2}"
    status=$?
    wait "$server" || { status=$?; cat "$log" >&2; }
    rm -f "$log"
    return $status
}

# between_gpus VERB OPTIONS...: from GPU 0 to GPU 1 and back, each directly and staged.
between_gpus() {
    local verb=$1 way gpu status=0
    shift
    for way in direct staged; do
        for gpu in 0 1; do
            echo "== $verb, client on GPU $gpu, server on GPU $((1 - gpu)), $way"
            SERVER=--$way perf $((1 - gpu)) "$verb" --gpu "$gpu" "--$way" "$@" || status=$?
        done
    done
    return $status
}

# visible GPUS: gdr with these GPUs, in this order, against what the driver says of them.
visible() {
    local gpus index=0 gpu status=0
    export CUDA_VISIBLE_DEVICES=$1
    IFS=, read -ra gpus <<<"$1"
    echo "== CUDA_VISIBLE_DEVICES=$1"
    for gpu in "${gpus[@]}"; do
        local address used
        # nvidia-smi writes the domain with eight digits, gdr with four.
        address=$(nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader -i "$gpu" | tr A-F a-f)
        used=$("$GDR" loopback --require-gpu --gpu "$index" --json | sed -nE 's/.*"pci": "([^"]*)".*/\1/p' | head -n 1)
        echo "--gpu $index is $used, nvidia-smi's $gpu is $address"
        [ "0000$used" = "$address" ] || status=1
        index=$((index + 1))
    done
    "$GDR" loopback --all --require-gpu --size 16M && perf 0 write-bw --gpu $((index - 1)) -s 1M -D 1 --verify ||
        status=1
    return $status
}

# The Python package in the bundle's wheel, beside PyTorch.
wheel() {
    command -v python3 >/dev/null && python3 -c 'import torch' 2>/dev/null || skip "no PyTorch"
    local wheels=("$HERE"/wheel/*.whl) packages=$OUT/wheel
    [ -e "${wheels[0]}" ] || skip "the bundle has no wheel: it was made without PyPI"
    [ -e "$packages/gdr" ] || python3 -m pip install --quiet --no-index --no-deps --target "$packages" "${wheels[0]}" ||
        return $?
    PYTHONPATH=$packages python3 "$@"
}

# mesh OPTIONS: a rank for each GPU, at least four, which then share GPUs.
mesh() {
    local gpus ranks rank others=() status
    gpus=$(nvidia-smi -L | wc -l)
    ranks=$((gpus > 4 ? gpus : 4))
    for ((rank = 1; rank < ranks; rank++)); do
        "$GDR" mesh --rank "$rank" --ranks "$ranks" --local-rank $((rank % gpus)) --require-gpu "$@" \
            >"$OUT/mesh.$rank.log" 2>&1 &
        others+=($!)
    done
    "$GDR" mesh --rank 0 --ranks "$ranks" --local-rank 0 --require-gpu --svg "$OUT/mesh.svg" "$@"
    status=$?
    for rank in "${others[@]}"; do
        wait "$rank" || status=$?
    done
    return $status
}

# gdr's distances beside those that nvidia-smi prints, cell by cell.
topology() {
    local option status=0
    for option in -m -mp; do
        nvidia-smi topo $option >"$OUT/nvidia-smi-topo$option.txt" && cat "$OUT/nvidia-smi-topo$option.txt" &&
            "$GDR" topo check --matrix "$OUT/nvidia-smi-topo$option.txt" || status=$?
    done
    "$GDR" topo && "$GDR" topo why GPU0 GPU1 || status=$?
    # What the doctor finds is the machine's: without a NIC it ends with 2.
    "$GDR" doctor || echo "gdr doctor ended with $?"
    return $status
}

# four NAME WORDS... -- COMMAND...: four.py on four GPUs, each rank by the command.
four() {
    local name=$1 words=() rank ranks=() status=0 packages=$OUT/wheel
    shift
    while [ "$1" != -- ]; do words+=("$1") && shift; done
    shift
    [ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge 4 ] || skip "fewer than four GPUs"
    command -v python3 >/dev/null && python3 -c 'import torch' 2>/dev/null || skip "no PyTorch"
    local port=$((20000 + RANDOM % 10000))
    for rank in 0 1 2 3; do
        env RANK=$rank WORLD_SIZE=4 DEVICE=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port PYTHONPATH="$packages" \
            NCCL_HOSTID="host$rank" NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_SOCKET_IFNAME=lo \
            NCCL_IB_GID_INDEX=0 NCCL_NET_GDR_LEVEL=SYS NCCL_GIN_TYPE=2 \
            "$@" python3 "$HERE/four.py" "${words[@]}" >"$OUT/$name.rank.$rank.jsonl" &
        ranks+=($!)
    done
    for rank in "${ranks[@]}"; do
        wait "$rank" || status=$?
    done
    cat "$OUT/$name".rank.?.jsonl
    return $status
}

# nccl_tests RANKS PROGRAM OPTIONS...: a program of nccl-tests, built with MPI=1 in the folder NCCL_TESTS, through
# gdr's device. Each rank has a GPU and is a host of its own, and each result is compared.
nccl_tests() {
    local ranks=$1 program=$2 said
    shift 2
    [ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge "$ranks" ] || skip "fewer than $ranks GPUs"
    command -v mpirun >/dev/null || skip "mpirun is not installed"
    [ -x "${NCCL_TESTS:-}/$program" ] || skip "NCCL_TESTS does not name a folder with $program"
    # By itself mpirun binds each of two ranks to one CPU, which NCCL's threads and gdr's would share.
    # shellcheck disable=SC2016 # Each rank expands it.
    said=$(NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_SOCKET_IFNAME=lo \
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        "$GDR" run --nic 127.0.0.1 -- mpirun --bind-to none --oversubscribe -np "$ranks" \
        bash -c 'NCCL_HOSTID=host$OMPI_COMM_WORLD_RANK exec "$@"' rank "$NCCL_TESTS/$program" -g 1 -c 1 "$@")
    local status=$?
    echo "$said"
    grep -q 'Out of bounds values : 0 OK' <<<"$said" || status=1
    return $status
}

two_gpus() {
    [ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge 2 ] || skip "one GPU"
}
export -f skip with_program a_warning_is_fine without_privileges nccl nccl_direct nccl_gdrcopy traced perf between_gpus visible topology mesh wheel
export -f two_gpus four nccl_tests

# The machine. Commands and files that do not exist here are left out.
{
    date -u
    uname -srm
    cat /proc/driver/nvidia/version
    nvidia-smi
    lscpu
} >"$OUT/machine.txt" 2>/dev/null

passed=0 failed=0 skipped=0
: >"$OUT/summary.tsv"

# step NAME FILE EXTENSION LIMIT_S COMMAND
step() {
    local name=$1 log=$OUT/$2.log output=$OUT/$2.$3 limit=$4 command=$5
    [[ $name =~ $STEPS ]] || return 0
    printf '== %s\n' "$name"
    local start=$SECONDS status outcome reason=
    timeout --kill-after=10 "$limit" bash -c "$command" >"$output" 2>"$log" </dev/null
    status=$?
    # Without a GPU gdr simulates one and says so. Such a result counts as failed.
    if [ "$status" = 0 ] && grep -qiE '^simulated:|"simulated": true' "$output"; then
        echo "no real GPU was used: see the first lines of ${output##*/}" >"$log"
        status=simulated
    fi
    case $status in
    0)
        outcome=passed passed=$((passed + 1))
        ;;
    77)
        outcome=skipped skipped=$((skipped + 1))
        reason=$(tail -n 1 "$log" | tr '\t' ' ')
        ;;
    *)
        outcome=failed failed=$((failed + 1))
        case $status in
        simulated) reason="no real GPU was used" ;;
        124 | 137) reason="stopped after $limit s" ;;
        *) reason="exit status $status" ;;
        esac
        # The end of the output.
        tail -n 20 "$output" "$log" 2>/dev/null
        ;;
    esac
    printf '%s\t%s\t%s\t%s\n' "$name" "$outcome" $((SECONDS - start)) "$reason" |
        tee -a "$OUT/summary.tsv"
}

@STEPS@

echo
echo "== result"
while IFS=$'\t' read -r name outcome seconds reason; do
    printf '%-8s %5s s  %s%s\n' "$outcome" "$seconds" "$name" "${reason:+ ($reason)}"
done <"$OUT/summary.tsv"
# All files in one archive.
(cd "$OUT" && tar czf results.tar.gz ./*.txt ./*.json ./*.jsonl ./*.svg ./*.log summary.tsv) 2>/dev/null
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
