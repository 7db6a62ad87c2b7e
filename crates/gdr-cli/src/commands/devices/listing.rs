//! The RDMA devices of a node, as JSON and as text.

use anyhow::Result;
use gdr_doctor::Capture;
use gdr_perf::report::Schema;
use gdr_render::Table;
use owo_colors::OwoColorize;
use serde::Serialize;

use super::gpu_memory::GpuMemory;
use crate::commands::diff::printable;
use crate::exit::Exit;
use crate::output::Output;

/// Why the soft devices of another node are unknown: they would be at its IP addresses.
const NO_ADDRESSES: &str =
    "not recorded: of the node's IP addresses a capture has only those that are GIDs";

/// The RDMA devices of a node.
#[derive(Debug, Serialize)]
pub(super) struct Listing {
    #[serde(flatten)]
    schema: Schema,
    /// The capture that it was read from; `None` for this machine and the example node.
    capture: Option<Capture>,
    verbs: Verbs,
    soft: Vec<SoftDevice>,
    /// Why the soft devices are not known.
    soft_error: Option<String>,
}

/// The kernel devices.
#[derive(Debug, Serialize)]
pub(super) struct Verbs {
    /// `ok`, `no_library`, `no_symbol`, `no_device`.
    status: &'static str,
    /// The reason why no device was found, and the remedy.
    error: Option<String>,
    devices: Vec<Kernel>,
}

/// A kernel device.
#[derive(Debug, Serialize)]
pub(super) struct Kernel {
    pub(super) name: String,
    /// Why it cannot be queried.
    pub(super) error: Option<String>,
    pub(super) firmware: Option<String>,
    pub(super) on_demand_paging: Option<bool>,
    pub(super) ports: Vec<Port>,
    pub(super) gpu_memory: Option<GpuMemory>,
    /// Facts missing from the capture; empty for this machine.
    pub(super) not_recorded: Vec<String>,
}

/// A port. `None` means unknown.
#[derive(Debug, Serialize)]
pub(super) struct Port {
    pub(super) port: u32,
    pub(super) state: Option<String>,
    pub(super) active: Option<bool>,
    pub(super) link_layer: Option<String>,
    pub(super) gigabits_per_second: Option<f64>,
    pub(super) active_mtu: Option<u32>,
    pub(super) lid: Option<u16>,
    pub(super) gids: Vec<Gid>,
    /// Index of the GID in use.
    pub(super) gid: Option<u32>,
    /// The reason for that choice, or why none of the GIDs is usable. `None` if too little is recorded.
    pub(super) gid_because: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Gid {
    pub(super) index: u32,
    pub(super) gid: String,
    pub(super) address: String,
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) netdev: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct SoftDevice {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) netdev: String,
    pub(super) link_mtu: Option<u32>,
    pub(super) path_mtu: Option<usize>,
}

impl Verbs {
    /// Lists devices that exist; also returns the status of the command.
    pub(super) fn of_devices(devices: Vec<Kernel>) -> (Self, Exit) {
        let exit = if devices.iter().all(|device| device.error.is_none()) {
            Exit::Fine
        } else {
            Exit::Warning
        };
        let verbs = Self {
            status: "ok",
            error: None,
            devices,
        };
        (verbs, exit)
    }

    /// Returns a listing without devices, for this reason.
    pub(super) fn absent(status: &'static str, error: String) -> Self {
        Self {
            status,
            error: Some(error),
            devices: Vec::new(),
        }
    }
}

impl Listing {
    pub(super) fn of_this_machine(verbs: Verbs, soft: Vec<SoftDevice>) -> Self {
        Self {
            schema: Schema::first("gdr.devices"),
            capture: None,
            verbs,
            soft,
            soft_error: None,
        }
    }

    /// Lists the devices of another node, from this capture or the example.
    pub(super) fn of_another_node(verbs: Verbs, capture: Option<Capture>) -> Self {
        Self {
            schema: Schema::first("gdr.devices"),
            capture,
            verbs,
            soft: Vec::new(),
            soft_error: Some(NO_ADDRESSES.to_owned()),
        }
    }

    pub(super) fn show(&self, output: &mut Output) -> Result<()> {
        if let Some(capture) = &self.capture {
            output.paragraph("", "  ", &printable(&capture.to_string()))?;
            output.line("")?;
        }
        if let Some(error) = &self.verbs.error {
            let heading = "No kernel RDMA device:".bold();
            output.paragraph("", "  ", &format!("{heading} {}", printable(error)))?;
        }
        for device in &self.verbs.devices {
            device.show(output)?;
        }
        output.line("")?;
        let heading = "Soft devices:".bold();
        if let Some(error) = &self.soft_error {
            output.paragraph("", "  ", &format!("{heading} {error}"))?;
            return Ok(());
        }
        output.line(format_args!(
            "{heading} RoCEv2 over UDP in this process, needs no hardware:"
        ))?;
        let mut table =
            Table::new(&["  device", "netdev", "link MTU", "path MTU"]).keep_whole(&[0]);
        for soft in &self.soft {
            table.row(vec![
                format!("  {}", soft.name),
                soft.netdev.clone(),
                or_dash(soft.link_mtu),
                or_dash(soft.path_mtu),
            ]);
        }
        output.table(&table)?;
        output.line(
            "  for programs under `gdr run`, each of the GID indices 0 to 3 names the address",
        )?;
        Ok(())
    }
}

impl Kernel {
    fn show(&self, output: &mut Output) -> Result<()> {
        let firmware = match &self.firmware {
            Some(firmware) => format!(", firmware {}", printable(firmware)),
            None => String::new(),
        };
        output.line(format_args!("{}{firmware}", printable(&self.name).bold()))?;
        if let Some(error) = &self.error {
            let text = format!("cannot be queried: {}", printable(error));
            output.paragraph("  ", "    ", &text)?;
        }
        for port in &self.ports {
            port.show(output)?;
        }
        if let Some(gpu) = &self.gpu_memory {
            let text = format!("GPU memory: {} ({})", gpu.route, printable(&gpu.because));
            output.paragraph("  ", "    ", &text)?;
        }
        if !self.not_recorded.is_empty() {
            let text = format!("not recorded: {}", self.not_recorded.join(", "));
            output.paragraph("  ", "    ", &text)?;
        }
        Ok(())
    }
}

impl Port {
    fn show(&self, output: &mut Output) -> Result<()> {
        let lid = self
            .lid
            .map_or_else(String::new, |lid| format!(", LID {lid}"));
        let rate = match self.gigabits_per_second {
            Some(rate) => format!("{rate} Gbit/s"),
            None => "rate not known".to_owned(),
        };
        let or = |text: &Option<String>, other: &str| match text {
            Some(text) => printable(text),
            None => other.to_owned(),
        };
        output.line(format_args!(
            "  port {}: {}, {}, {rate}, MTU {}{lid}",
            self.port,
            or(&self.state, "state not known"),
            or(&self.link_layer, "link layer not known"),
            or_dash(self.active_mtu),
        ))?;
        if !self.gids.is_empty() {
            let mut table = Table::new(&["", "GID", "type", "address", "netdev"]).keep_whole(&[0]);
            for gid in &self.gids {
                let taken = self.gid == Some(gid.index);
                table.row(vec![
                    format!("  {}{}", if taken { "* " } else { "  " }, gid.index),
                    gid.gid.clone(),
                    or(&gid.kind, "-"),
                    gid.address.clone(),
                    or(&gid.netdev, "-"),
                ]);
            }
            output.table(&table)?;
        }
        if let Some(because) = &self.gid_because {
            let choice = match self.gid {
                Some(_) => format!("uses {because}"),
                None => format!("uses no GID: {because}"),
            };
            output.paragraph("  ", "    ", &choice)?;
        }
        Ok(())
    }
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
