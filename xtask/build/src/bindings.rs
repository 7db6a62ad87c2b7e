//! `cargo xtask bindings`: generates the declarations of gdr-verbs-sys.
//!
//! The `bindgen` command makes them from libibverbs' header. They are kept in git, so that a build needs neither that
//! header nor bindgen nor libclang.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};

use crate::workspace::root;

/// The source of the declarations.
#[derive(clap::Args)]
pub struct Source {
    /// Release of rdma-core that the header is from, such as 65.0.
    #[arg(long, value_name = "VERSION")]
    rdma_core: String,
    /// Folder that contains infiniband/verbs.h, such as that of an unpacked libibverbs-dev.
    #[arg(long, value_name = "FOLDER", default_value = "/usr/include")]
    headers: PathBuf,
    /// Write nothing; fail if the files in git differ from what the header gives.
    #[arg(long)]
    check: bool,
}

const CRATE: &str = "crates/gdr-verbs-sys/src";

const INSTALL: &str = "it comes with `cargo install bindgen-cli --version 0.72.1 --locked`, and \
    needs libclang, for example from `pip install libclang`, with its folder in LIBCLANG_PATH";

/// Types to declare. Types that they contain or point to are declared as well.
const TYPES: &[&str] = &[
    "__be16",
    "ibv_access_flags",
    "ibv_async_event",
    "ibv_comp_cntr",
    "ibv_comp_cntr_caps",
    "ibv_comp_cntr_init_attr",
    "ibv_cq_init_attr_mask",
    "ibv_create_cq_attr_flags",
    "ibv_create_cq_wc_flags",
    "ibv_device_attr_ex",
    "ibv_device_cap_flags",
    "ibv_fork_status",
    "ibv_gid_entry",
    "ibv_gid_type",
    "ibv_mr_init_attr_mask",
    "ibv_odp_general_caps",
    "ibv_odp_transport_cap_bits",
    "ibv_port_attr",
    "ibv_port_cap_flags",
    "ibv_qp_attach_comp_cntr_attr",
    "ibv_qp_attach_comp_cntr_op",
    "ibv_qp_attr",
    "ibv_qp_attr_mask",
    "ibv_qp_create_send_ops_flags",
    "ibv_qp_ex",
    "ibv_qp_init_attr",
    "ibv_qp_init_attr_mask",
    "ibv_query_qp_data_in_order_caps",
    "ibv_query_qp_data_in_order_flags",
    "ibv_send_flags",
    "ibv_values_mask",
    "ibv_wc",
    "ibv_wc_flags",
    "verbs_context",
];

/// Types that gdr-verbs-sys declares itself (`opaque.rs`): types that are only pointed to, and types of the C library.
const OPAQUE: &[&str] = &[
    "_compat_ibv_port_attr",
    "ib_uverbs_flow_.*",
    "ibv_ah",
    "ibv_alloc_dm_attr",
    "ibv_buf",
    "ibv_counter_.*",
    "ibv_counters(_.*)?",
    "ibv_dm",
    "ibv_dmah(_.*)?",
    "ibv_flow(_.*)?",
    "ibv_modify_cq_attr",
    "ibv_mw_bind",
    "ibv_ops_wr(_.*)?",
    "ibv_parent_domain_.*",
    "ibv_qp_open_attr",
    "ibv_qp_rate_limit_attr",
    "ibv_rwq_.*",
    "ibv_srq",
    "ibv_srq_init_attr_ex",
    "ibv_td(_.*)?",
    "ibv_wq(_.*)?",
    "ibv_xrcd(_.*)?",
    "verbs_ex_private",
    "__atomic_.*",
    "__pthread.*",
    "__syscall_slong_t",
    "__time_t",
    "pthread_.*",
    "timespec",
];

/// Functions that gdr-verbs-sys loads.
const FUNCTIONS: &[&str] = &[
    "_ibv_query_gid_ex",
    "_ibv_query_gid_table",
    "ibv_ack_async_event",
    "ibv_ack_cq_events",
    "ibv_alloc_pd",
    "ibv_close_device",
    "ibv_create_comp_channel",
    "ibv_create_cq",
    "ibv_create_qp",
    "ibv_dealloc_pd",
    "ibv_dereg_mr",
    "ibv_destroy_comp_channel",
    "ibv_destroy_cq",
    "ibv_destroy_qp",
    "ibv_fork_init",
    "ibv_free_device_list",
    "ibv_get_async_event",
    "ibv_get_cq_event",
    "ibv_get_device_guid",
    "ibv_get_device_index",
    "ibv_get_device_list",
    "ibv_get_device_name",
    "ibv_is_fork_initialized",
    "ibv_modify_qp",
    "ibv_open_device",
    "ibv_qp_to_qp_ex",
    "ibv_query_device",
    "ibv_query_gid",
    "ibv_query_pkey",
    "ibv_query_port",
    "ibv_query_port_speed",
    "ibv_query_qp",
    "ibv_query_qp_data_in_order",
    "ibv_reg_dmabuf_mr",
    "ibv_reg_mr",
    "ibv_reg_mr_ex",
    "ibv_reg_mr_iova2",
    "ibv_resize_cq",
];

/// Writes the files, or compares them with those in git.
pub fn run(source: &Source) -> anyhow::Result<ExitCode> {
    let bindgen = Bindgen::find(source)?;
    let types = bindgen.types()?;
    let functions = bindgen.functions()?;
    let mut stale = false;
    for (name, text) in [("bindings.rs", types), ("ffi.rs", functions)] {
        let path = root().join(CRATE).join(name);
        if !source.check {
            fs::write(&path, text)
                .with_context(|| format!("{} cannot be written", path.display()))?;
            println!("{} written", path.display());
        } else if fs::read_to_string(&path).unwrap_or_default() == text {
            println!("{} is what the header gives", path.display());
        } else {
            stale = true;
            println!("{} is not what the header gives", path.display());
        }
    }
    Ok(if stale {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

struct Bindgen<'a> {
    source: &'a Source,
    header: PathBuf,
    /// The folder of `stddef.h` and other headers of the compiler, which libclang from PyPI lacks.
    compiler_headers: Option<OsString>,
    version: String,
}

impl<'a> Bindgen<'a> {
    fn find(source: &'a Source) -> anyhow::Result<Self> {
        let header = source.headers.join("infiniband/verbs.h");
        if !header.is_file() {
            bail!(
                "{} is missing: install libibverbs-dev, or name the include folder of an unpacked \
                 one with --headers",
                header.display()
            );
        }
        let version = text_of(Command::new("bindgen").arg("--version"))
            .with_context(|| format!("bindgen cannot be used: {INSTALL}"))?;
        let include = text_of(Command::new("cc").arg("-print-file-name=include"));
        Ok(Self {
            source,
            header,
            compiler_headers: include.ok().map(|path| format!("-I{}", path.trim()).into()),
            version: version.trim().to_owned(),
        })
    }

    /// Returns types and constants with assertions of their layouts.
    fn types(&self) -> anyhow::Result<String> {
        let text = self.declare(&[
            ["--generate", "types"],
            ["--default-enum-style", "newtype"],
            ["--allowlist-type", &TYPES.join("|")],
            ["--blocklist-type", &OPAQUE.join("|")],
            ["--raw-line", "use super::opaque::*;"],
        ])?;
        let text = formatted(&format!("{}\n{text}", self.heading()))?;
        // The C library's mutexes, and with them these layouts, differ in size between processors.
        Ok(text.replace(
            "\nconst _: () = {",
            "\n#[cfg(all(target_arch = \"x86_64\", target_env = \"gnu\"))]\nconst _: () = {",
        ))
    }

    /// Returns prototypes, which the loader's table is checked against.
    fn functions(&self) -> anyhow::Result<String> {
        let text = self.declare(&[
            ["--generate", "functions"],
            ["--allowlist-function", &FUNCTIONS.join("|")],
            ["--blocklist-type", ".*"],
            ["--raw-line", "use super::bindings::*;"],
            ["--raw-line", "use super::opaque::*;"],
        ])?;
        formatted(&format!("{}\n{text}", self.heading()))
    }

    fn declare(&self, options: &[[&str; 2]]) -> anyhow::Result<String> {
        let mut command = Command::new("bindgen");
        command
            .arg(&self.header)
            .args([
                "--no-doc-comments",
                "--use-core",
                "--disable-header-comment",
                "--merge-extern-blocks",
            ])
            .args(["--rust-edition", "2024", "--rust-target", "1.88"])
            .args(["--formatter", "none"])
            .args(options.iter().flatten())
            .arg("--")
            .arg(include(&self.source.headers))
            .args(&self.compiler_headers);
        text_of(&mut command)
    }

    fn heading(&self) -> String {
        format!(
            "// Declarations of libibverbs: infiniband/verbs.h of rdma-core {release}, by \
             {version}.\n// The header is its authors', under the OpenIB.org BSD licence or \
             GPL-2.0.\n//\n// Do not edit. Made by:\n//     cargo xtask bindings --rdma-core \
             {release} --headers FOLDER\n",
            release = self.source.rdma_core,
            version = self.version,
        )
    }
}

fn include(folder: &Path) -> OsString {
    let mut option = OsString::from("-I");
    option.push(folder);
    option
}

/// Formats a text as `cargo fmt` does.
fn formatted(text: &str) -> anyhow::Result<String> {
    let mut child = Command::new("rustfmt")
        .args(["--edition", "2024", "--emit", "stdout", "--config-path"])
        .arg(root().join("rustfmt.toml"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("rustfmt is not installed: rustup component add rustfmt")?;
    let mut input = child.stdin.take().context("rustfmt has no input")?;
    // rustfmt reads all of its input before it writes.
    input.write_all(text.as_bytes())?;
    drop(input);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("rustfmt fails ({})", output.status);
    }
    String::from_utf8(output.stdout).context("rustfmt's output is not UTF-8")
}

/// Runs a command and returns its output.
fn text_of(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("{name} cannot be started"))?;
    if !output.status.success() {
        bail!(
            "{name} fails ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("{name}'s output is not UTF-8"))
}
