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
pub(crate) const STEPS: [Step; 14] = [
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
        name: "gdr sanity under compute-sanitizer",
        file: "compute-sanitizer",
        prints: Prints::Text,
        limit_s: 600,
        command: r#"with_program compute-sanitizer --target-processes all --error-exitcode 9 "$GDR" sanity --require-gpu"#,
    },
];
