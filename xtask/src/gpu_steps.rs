//! The steps that need a GPU, for `cargo xtask test` and for the bundle.

/// One step of the GPU run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// The name in reports.
    pub(crate) name: &'static str,
    /// The name of its files in the results: `<file>.<extension>` for standard output, `<file>.log`
    /// for standard error.
    pub(crate) file: &'static str,
    /// The format of its standard output.
    pub(crate) prints: Prints,
    /// Seconds after which it is stopped and counts as failed.
    pub(crate) limit_s: u32,
    /// The command, which may call the functions of `run.sh`.
    pub(crate) command: &'static str,
}

/// The format of a step's standard output.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Prints {
    Text,
    Json,
}

impl Prints {
    pub(crate) const fn extension(self) -> &'static str {
        match self {
            Self::Text => "txt",
            Self::Json => "json",
        }
    }
}

/// All steps in the order of the run: prerequisites first, long measurements last.
pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "gdr info",
        file: "info",
        prints: Prints::Text,
        limit_s: 60,
        command: r#"a_warning_is_fine "$GDR" info --require-gpu"#,
    },
    Step {
        name: "gdr sanity -e -v",
        file: "sanity",
        prints: Prints::Text,
        limit_s: 600,
        command: r#"a_warning_is_fine "$GDR" sanity --require-gpu -e -v"#,
    },
    Step {
        name: "gdr loopback",
        file: "loopback",
        prints: Prints::Json,
        limit_s: 120,
        command: r#""$GDR" loopback --require-gpu --size 16M --json"#,
    },
    Step {
        name: "gdr loopback --staged",
        file: "loopback-staged",
        prints: Prints::Json,
        limit_s: 120,
        command: r#""$GDR" loopback --require-gpu --size 16M --staged --json"#,
    },
    Step {
        name: "RDMA beside a kernel that does not end",
        file: "resident-kernel",
        prints: Prints::Text,
        limit_s: 120,
        command: r#""$HERE/bin/resident_kernel""#,
    },
    Step {
        name: "raw packets into GPU memory",
        file: "raw-packets",
        prints: Prints::Text,
        limit_s: 60,
        command: r#""$GDR" run --nic 127.0.0.1 --only-soft -- "$HERE/bin/raw_packets" gdr0 gdr0"#,
    },
    Step {
        name: "gdr trace of raw packets",
        file: "trace-raw-packets",
        prints: Prints::Text,
        limit_s: 60,
        // Half of the bytes are sent from GPU memory, and half received there.
        command: r#""$GDR" trace --require direct=50% -- "$GDR" run --nic 127.0.0.1 --only-soft -- "$HERE/bin/raw_packets" gdr0 gdr0"#,
    },
    Step {
        name: "NCCL through gdr's device",
        file: "nccl-direct",
        prints: Prints::Text,
        limit_s: 120,
        command: r#"nccl_direct nccl-direct $((64 << 20)) 0 0 "$GDR" run --nic 127.0.0.1 --"#,
    },
    Step {
        name: "NCCL through sockets",
        file: "nccl-sockets",
        prints: Prints::Text,
        limit_s: 120,
        command: r#"NCCL_IB_DISABLE=1 nccl nccl-sockets $((64 << 20)) 0 0"#,
    },
    Step {
        name: "NCCL through gdr's device, sent from host memory",
        file: "nccl-no-read",
        prints: Prints::Text,
        limit_s: 120,
        command: r#"NCCL_NET_GDR_READ=0 nccl_direct nccl-no-read $((64 << 20)) 0 0 "$GDR" run --nic 127.0.0.1 --"#,
    },
    Step {
        name: "gdr trace of NCCL",
        file: "trace-nccl",
        prints: Prints::Text,
        limit_s: 120,
        command: r#"nccl_direct trace-nccl $((1 << 20)) 0 0 "$GDR" trace --require direct=50% -o "$OUT/trace-nccl.%p.txt" -- "$GDR" run --nic 127.0.0.1 -- && cat "$OUT"/trace-nccl.*.txt"#,
    },
    Step {
        name: "gdr trace of raw packets against the engine's counters",
        file: "traced-raw-packets",
        prints: Prints::Text,
        limit_s: 60,
        command: r#"traced raw-packets "$GDR" trace --json -o "$OUT/traced/raw-packets/%p.json" -- "$GDR" run --nic 127.0.0.1 --only-soft -- "$HERE/bin/raw_packets" gdr0 gdr0"#,
    },
    Step {
        name: "gdr trace of NCCL against the engine's counters",
        file: "traced-nccl",
        prints: Prints::Text,
        limit_s: 120,
        command: r#"traced nccl nccl_direct traced-nccl $((16 << 20)) 0 0 "$GDR" trace --json -o "$OUT/traced/nccl/%p.json" -- "$GDR" run --nic 127.0.0.1 --"#,
    },
    Step {
        name: "WRITEs over 1 to 8 shards",
        file: "shards",
        prints: Prints::Json,
        limit_s: 180,
        command: r#""$HERE/bin/shards""#,
    },
    Step {
        name: "gdr loopback --sweep",
        file: "loopback-sweep",
        prints: Prints::Json,
        limit_s: 180,
        command: r#""$GDR" loopback --sweep --provider soft --require-gpu --json"#,
    },
    Step {
        name: "NCCL with GDRCopy's interface, long copies on every path",
        file: "nccl-gdrcopy-auto",
        prints: Prints::Text,
        limit_s: 120,
        command: r#"GDR_COPY=auto GDR_COPY_THREADS=4 NCCL_GDRCOPY_ENABLE=1 nccl_direct nccl-gdrcopy-auto $((64 << 20)) 0 0 "$GDR" run --nic 127.0.0.1 -- && nccl_gdrcopy nccl-gdrcopy-auto"#,
    },
    Step {
        name: "gdr perf write-bw",
        file: "perf-write-bw",
        prints: Prints::Json,
        limit_s: 120,
        command: r#"perf 0 write-bw -s 8,64,1K,4K,16K,64K,256K,1M,4M -D 1 --json --svg "$OUT/perf-write-bw.svg""#,
    },
    Step {
        name: "gdr perf read-bw",
        file: "perf-read-bw",
        prints: Prints::Json,
        limit_s: 120,
        command: r#"perf 0 read-bw -s 8,64,1K,4K,16K,64K,256K,1M,4M -D 1 --json --svg "$OUT/perf-read-bw.svg""#,
    },
    Step {
        name: "gdr perf send-bw",
        file: "perf-send-bw",
        prints: Prints::Json,
        limit_s: 120,
        command: r#"perf 0 send-bw -s 8,1K,64K,1M -D 1 --json --svg "$OUT/perf-send-bw.svg""#,
    },
    Step {
        name: "gdr perf write-lat",
        file: "perf-write-lat",
        prints: Prints::Json,
        limit_s: 120,
        command: r#"perf 0 write-lat -s 8,4K,64K --json"#,
    },
    Step {
        name: "gdr perf read-lat",
        file: "perf-read-lat",
        prints: Prints::Json,
        limit_s: 120,
        command: r#"perf 0 read-lat -s 8,4K,64K --json"#,
    },
    Step {
        name: "gdr perf write-bw --verify",
        file: "perf-verify",
        prints: Prints::Text,
        limit_s: 120,
        command: r#"perf 0 write-bw -a -n 300 --verify"#,
    },
    Step {
        name: "objects in GPU memory, and gdr loopback beside",
        file: "objects",
        prints: Prints::Json,
        limit_s: 300,
        command: r#""$HERE/bin/measure" 1024 && "$GDR" loopback --require-gpu --size 1G --json"#,
    },
    Step {
        name: "gdr compare",
        file: "compare",
        prints: Prints::Json,
        limit_s: 200,
        command: r#""$GDR" compare --require-gpu --json --svg "$OUT/compare.svg""#,
    },
    Step {
        name: "gdr compare --kiro",
        file: "compare-kiro",
        prints: Prints::Text,
        limit_s: 200,
        command: r#""$GDR" compare --require-gpu --kiro -i 5"#,
    },
    Step {
        name: "gdr mesh",
        file: "mesh",
        prints: Prints::Text,
        limit_s: 120,
        // The ranks share CPUs, so no rate is judged; bytes are compared.
        command: "mesh --provider soft --least 0",
    },
    Step {
        name: "two GPUs: NCCL through gdr's device",
        file: "nccl-two-gpus",
        prints: Prints::Text,
        limit_s: 120,
        command: r#"two_gpus; nccl_direct nccl-two-gpus $((256 << 20)) 0 1 "$GDR" run --nic 127.0.0.1 --"#,
    },
    Step {
        name: "two GPUs: NCCL with GDRCopy's interface",
        file: "nccl-two-gpus-gdrcopy",
        prints: Prints::Text,
        limit_s: 120,
        command: r#"two_gpus; NCCL_GDRCOPY_ENABLE=1 nccl_direct nccl-two-gpus-gdrcopy $((256 << 20)) 0 1 "$GDR" run --nic 127.0.0.1 --"#,
    },
    Step {
        name: "two GPUs: NCCL through sockets",
        file: "nccl-two-gpus-sockets",
        prints: Prints::Text,
        limit_s: 120,
        command: r#"two_gpus; NCCL_IB_DISABLE=1 nccl nccl-two-gpus-sockets $((256 << 20)) 0 1"#,
    },
    Step {
        name: "two GPUs: gdr perf write-bw --verify",
        file: "perf-two-gpus",
        prints: Prints::Text,
        limit_s: 120,
        command: r#"two_gpus; perf 1 write-bw --gpu 0 -s 64K,1M,4M -D 1 --verify && perf 0 write-bw --gpu 1 -s 64K,1M,4M -D 1 --verify"#,
    },
    Step {
        name: "two GPUs: gdr loopback --all",
        file: "loopback-all",
        prints: Prints::Text,
        limit_s: 120,
        command: r#"two_gpus; "$GDR" loopback --all --require-gpu --size 16M; nvidia-smi topo -m; "$GDR" topo"#,
    },
    Step {
        name: "gdr sanity -e -v, without privileges",
        file: "sanity-nobody",
        prints: Prints::Text,
        limit_s: 600,
        command: r#"a_warning_is_fine without_privileges "$GDR" sanity --require-gpu -e -v"#,
    },
    Step {
        name: "a C program on libgdrapi, stock driver",
        file: "client-rm",
        prints: Prints::Text,
        limit_s: 120,
        command: r#"GDR_BACKEND=rm "$HERE/bin/client""#,
    },
    Step {
        name: "a C program on libgdrapi, best backend",
        file: "client",
        prints: Prints::Text,
        limit_s: 120,
        command: r#""$HERE/bin/client""#,
    },
    Step {
        name: "a C program on libgdrapi, long copies on every path",
        file: "client-auto",
        prints: Prints::Text,
        limit_s: 120,
        command: r#"GDR_COPY=auto GDR_COPY_THREADS=4 XDG_STATE_HOME="$OUT/no-state" "$HERE/bin/client""#,
    },
    Step {
        name: "gdr copybw --against cuda",
        file: "copybw",
        prints: Prints::Json,
        limit_s: 300,
        command: r#"a_warning_is_fine "$GDR" copybw --require-gpu -s 4M -l --against cuda --json"#,
    },
    Step {
        name: "gdr copylat --against cuda",
        file: "copylat",
        prints: Prints::Json,
        limit_s: 600,
        command: r#"a_warning_is_fine "$GDR" copylat --require-gpu --against cuda --json"#,
    },
    Step {
        name: "gdr tune",
        file: "tune",
        prints: Prints::Json,
        limit_s: 300,
        command: r#"XDG_STATE_HOME="$OUT/state" "$GDR" tune --require-gpu -s 256M --json"#,
    },
    Step {
        name: "gdr plan",
        file: "plan",
        prints: Prints::Text,
        limit_s: 60,
        command: r#"XDG_STATE_HOME="$OUT/state" "$GDR" plan --require-gpu"#,
    },
    Step {
        name: "gdr copylat --sweep, by the profile",
        file: "copysweep",
        prints: Prints::Json,
        limit_s: 300,
        command: r#"XDG_STATE_HOME="$OUT/state" "$GDR" copylat --sweep --require-gpu -s 256M --svg "$OUT/copysweep.svg" --json"#,
    },
    Step {
        name: "gdr copylat --sweep --resident, by the profile",
        file: "copysweep-resident",
        prints: Prints::Json,
        limit_s: 300,
        command: r#"XDG_STATE_HOME="$OUT/state" "$GDR" copylat --sweep --resident --require-gpu -s 1M --svg "$OUT/copysweep-resident.svg" --json"#,
    },
    Step {
        name: "gdr copylat --sweep beside another library, by the profile",
        file: "copysweep-library",
        prints: Prints::Json,
        limit_s: 300,
        command: r#"[ -n "${COPY_LIBRARY:-}" ] || skip "COPY_LIBRARY names no library of copy functions"; XDG_STATE_HOME="$OUT/state" "$GDR" copylat --sweep --resident --library "$COPY_LIBRARY" --require-gpu -s 64M --svg "$OUT/copysweep-library.svg" --json"#,
    },
    Step {
        name: "reads by the resident kernel and the copy engine, and a fault",
        file: "reads",
        prints: Prints::Text,
        limit_s: 120,
        command: r#""$HERE/bin/reads""#,
    },
    Step {
        name: "gdr copybw --sweep, by the built-in costs",
        file: "copysweep-built-in",
        prints: Prints::Text,
        limit_s: 300,
        command: r#"XDG_STATE_HOME="$OUT/no-state" "$GDR" copybw --sweep --require-gpu -s 64M --svg "$OUT/copysweep-built-in.svg""#,
    },
    Step {
        name: "gdr apiperf",
        file: "apiperf",
        prints: Prints::Json,
        limit_s: 300,
        command: r#"a_warning_is_fine "$GDR" apiperf --require-gpu --json"#,
    },
    Step {
        name: "gdr pplat",
        file: "pplat",
        prints: Prints::Json,
        limit_s: 120,
        command: r#"a_warning_is_fine "$GDR" pplat --require-gpu --json"#,
    },
    Step {
        name: "the cost of the C interface",
        file: "overhead",
        prints: Prints::Text,
        limit_s: 120,
        command: r#"GDR_BACKEND=rm "$HERE/bin/overhead" "$HERE/lib/libgdrapi.so.2""#,
    },
    Step {
        name: "the Python package beside PyTorch",
        file: "wheel",
        prints: Prints::Text,
        limit_s: 300,
        command: r#"wheel "$HERE/wheel.py""#,
    },
    Step {
        name: "the Python package with PyTorch's expandable segments",
        file: "wheel-expandable",
        prints: Prints::Text,
        limit_s: 300,
        command: r#"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True wheel "$HERE/wheel.py""#,
    },
    Step {
        name: "gdr doctor from the Python package",
        file: "wheel-doctor",
        prints: Prints::Text,
        limit_s: 60,
        command: r#"wheel -c 'import gdr; print({key: gdr.doctor()[key] for key in ("schema", "counts")})'"#,
    },
    Step {
        name: "gdr sanity under compute-sanitizer",
        file: "compute-sanitizer",
        prints: Prints::Text,
        limit_s: 600,
        command: r#"with_program compute-sanitizer --target-processes all --error-exitcode 9 "$GDR" sanity --require-gpu"#,
    },
    Step {
        name: "reads by the resident kernel under compute-sanitizer",
        file: "compute-sanitizer-reads",
        prints: Prints::Text,
        limit_s: 300,
        command: r#"for tool in memcheck racecheck synccheck; do with_program compute-sanitizer --tool "$tool" --error-exitcode 9 "$HERE/bin/reads" valid || exit; done"#,
    },
];
