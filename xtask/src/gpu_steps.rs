//! What is run where there is a GPU: the one list, for `cargo xtask test` and for the bundle.

/// One step of the GPU run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Names the step in reports.
    pub(crate) name: &'static str,
    /// Names its files in the results: `<file>.<kind>` for what it prints, `<file>.log` for the
    /// rest.
    pub(crate) file: &'static str,
    /// What it prints.
    pub(crate) prints: Prints,
    /// It is stopped, and has failed, after so many seconds.
    pub(crate) limit_s: u32,
    /// The command, in the words of `run.sh`.
    pub(crate) command: &'static str,
}

/// What a step prints on its standard output.
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

/// Every step, in the order of the run: what everything rests on first, what takes long last.
pub(crate) const STEPS: [Step; 13] = [
    Step {
        name: "gdr info",
        file: "info",
        prints: Prints::Text,
        limit_s: 60,
        command: r#"a_warning_is_fine "$GDR" info"#,
    },
    Step {
        name: "gdr sanity -e -v",
        file: "sanity",
        prints: Prints::Text,
        limit_s: 600,
        command: r#"a_warning_is_fine "$GDR" sanity -e -v"#,
    },
    Step {
        name: "gdr loopback",
        file: "loopback",
        prints: Prints::Json,
        limit_s: 120,
        command: r#""$GDR" loopback --size 16M --json"#,
    },
    Step {
        name: "gdr loopback --staged",
        file: "loopback-staged",
        prints: Prints::Json,
        limit_s: 120,
        command: r#""$GDR" loopback --size 16M --staged --json"#,
    },
    Step {
        name: "gdr sanity -e -v, without privileges",
        file: "sanity-nobody",
        prints: Prints::Text,
        limit_s: 600,
        command: r#"a_warning_is_fine without_privileges "$GDR" sanity -e -v"#,
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
        command: r#"a_warning_is_fine "$GDR" copybw -s 4M -l --against cuda --json"#,
    },
    Step {
        name: "gdr copylat --against cuda",
        file: "copylat",
        prints: Prints::Json,
        limit_s: 600,
        command: r#"a_warning_is_fine "$GDR" copylat --against cuda --json"#,
    },
    Step {
        name: "gdr apiperf",
        file: "apiperf",
        prints: Prints::Json,
        limit_s: 300,
        command: r#"a_warning_is_fine "$GDR" apiperf --json"#,
    },
    Step {
        name: "gdr pplat",
        file: "pplat",
        prints: Prints::Json,
        limit_s: 120,
        command: r#"a_warning_is_fine "$GDR" pplat --json"#,
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
        command: r#"with_program compute-sanitizer --target-processes all --error-exitcode 9 "$GDR" sanity"#,
    },
];
