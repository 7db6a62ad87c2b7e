//! Properties that should be equal on nodes of the same kind.

use std::collections::BTreeMap;
use std::fmt;

use super::Category;
use crate::inventory::Inventory;
use crate::os_release::OsRelease;
use crate::pci::{Function, PortType};
use crate::rdma_gid::RdmaGid;
use crate::source::{Absence, Datum, DatumExt, Source, virtual_path};

/// A fact's key: a category, a device or module in it, and a property.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The category.
    pub category: Category,
    /// `GPU0`, `mlx5_3`, a PCI address, a module. Empty for the node itself.
    pub subject: String,
    /// The property.
    pub name: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.subject.as_str(), self.name.as_str()) {
            ("", name) => f.write_str(name),
            (subject, Facts::THERE) => f.write_str(subject),
            (subject, name) => write!(f, "{subject} {name}"),
        }
    }
}

/// Properties that should be equal on nodes of the same kind.
///
/// They exclude identifying properties (addresses, serial numbers, host names), properties that change by themselves
/// (counters, free memory), and the speed of a GPU's link, which drops while the GPU is idle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts(BTreeMap<Key, Datum<String>>);

impl Facts {
    /// The fact that a device or module exists.
    pub const THERE: &'static str = "is there";

    /// Reads the facts of a node.
    pub fn read(source: &dyn Source) -> Self {
        let mut facts = Self::default();
        let inventory = Inventory::read(source);
        facts.node(source);
        facts.kernel(source);
        facts.modules(source);
        facts.functions(source, &inventory);
        facts.ports_of_nics(source, &inventory);
        facts.distances(&inventory);
        facts.limits(source);
        facts.libraries(source);
        facts
    }

    /// Returns the facts, by category, thing and name.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Datum<String>)> {
        self.0.iter()
    }

    /// Returns the fact with this key.
    pub fn get(&self, key: &Key) -> Option<&Datum<String>> {
        self.0.get(key)
    }

    fn put(&mut self, category: Category, subject: &str, name: &str, value: Datum<String>) {
        let key = Key {
            category,
            subject: subject.to_owned(),
            name: name.to_owned(),
        };
        self.0.insert(key, value);
    }

    fn there(&mut self, category: Category, subject: &str) {
        self.put(category, subject, Self::THERE, Ok("yes".to_owned()));
    }

    fn node(&mut self, source: &dyn Source) {
        for (name, path) in [
            ("maker", "sys_vendor"),
            ("model", "product_name"),
            ("board", "board_name"),
            ("BIOS", "bios_version"),
            ("BIOS date", "bios_date"),
        ] {
            let text = source.text(&format!("/sys/class/dmi/id/{path}"));
            self.put(Category::Node, "", name, text);
        }
        let cpuinfo = source.text("/proc/cpuinfo");
        let cpu = cpuinfo.and_then(|text| {
            let mut lines = text.lines();
            let name = lines.find_map(|line| line.strip_prefix("model name"));
            let name = name.map(|rest| rest.trim_start_matches([' ', '\t', ':']).to_owned());
            name.ok_or(Absence::Missing)
        });
        self.put(Category::Node, "", "CPU", cpu);
        let memory = source.text("/proc/meminfo").and_then(|text| {
            let mut lines = text.lines();
            let total = lines.find_map(|line| line.strip_prefix("MemTotal:"));
            let kib =
                total.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
            // Firmware reserves some of it, which varies, so it is rounded to GiB.
            kib.map(|kib| format!("{} GiB", (kib + (1 << 19)) >> 20))
                .ok_or(Absence::Missing)
        });
        self.put(Category::Node, "", "memory", memory);
        for (name, path) in [
            ("NUMA nodes", "/sys/devices/system/node/online"),
            ("CPUs", "/sys/devices/system/cpu/online"),
            (
                "transparent huge pages",
                "/sys/kernel/mm/transparent_hugepage/enabled",
            ),
            ("NUMA balancing", "/proc/sys/kernel/numa_balancing"),
        ] {
            self.put(Category::Node, "", name, source.text(path));
        }
        let policies = "/sys/devices/system/cpu/cpufreq";
        let governors = source.list(policies).map(|names| {
            let text = |name: &String| source.text(&format!("{policies}/{name}/scaling_governor"));
            let mut all: Vec<String> = names.iter().filter_map(|n| text(n).ok()).collect();
            all.sort();
            all.dedup();
            all.join(", ")
        });
        self.put(Category::Node, "", "CPU governor", governors);
    }

    fn kernel(&mut self, source: &dyn Source) {
        for (name, path) in [
            ("release", "/proc/sys/kernel/osrelease"),
            ("lockdown", "/sys/kernel/security/lockdown"),
            ("ASPM policy", "/sys/module/pcie_aspm/parameters/policy"),
        ] {
            self.put(Category::Kernel, "", name, source.text(path));
        }
        let system = OsRelease::read(source).map(|system| system.name);
        self.put(Category::Kernel, "", "distribution", system);
        // One fact per argument, except those that name a node's own disks.
        if let Ok(text) = source.text("/proc/cmdline") {
            // What follows ` -- ` is for init (Linux `Documentation/admin-guide/kernel-parameters`).
            for argument in text.split_whitespace().take_while(|word| *word != "--") {
                let (name, value) = argument.split_once('=').unwrap_or((argument, "set"));
                if !matches!(name, "root" | "BOOT_IMAGE" | "initrd" | "resume" | "ip") {
                    self.put(Category::Kernel, "argument", name, Ok(value.to_owned()));
                }
            }
        }
        for line in lines(source, virtual_path::KERNEL_CONFIG) {
            if let Some((name, value)) = line.split_once('=') {
                let name = name.trim_start_matches("CONFIG_");
                self.put(Category::Kernel, "option", name, Ok(value.to_owned()));
            }
        }
    }

    fn modules(&mut self, source: &dyn Source) {
        const OURS: [&str; 10] = [
            "nvidia", "nv_", "gdrdrv", "mlx", "ib_", "rdma_", "iw_", "irdma", "efa", "bnxt_re",
        ];
        for line in lines(source, "/proc/modules") {
            let name = line.split(' ').next().unwrap_or_default();
            if !OURS.iter().any(|start| name.starts_with(start)) {
                continue;
            }
            self.there(Category::Modules, name);
            for what in ["version", "srcversion"] {
                let text = source.text(&format!("/sys/module/{name}/{what}"));
                self.put(Category::Modules, name, what, text);
            }
        }
        let flavour = source.text("/proc/driver/nvidia/version").map(|text| {
            let open = text.contains("Open Kernel Module");
            if open { "open" } else { "proprietary" }.to_owned()
        });
        self.put(Category::Modules, "nvidia", "flavour", flavour);
        for line in lines(source, "/proc/driver/nvidia/params") {
            if let Some((name, value)) = line.split_once(':') {
                let value = Ok(value.trim().to_owned());
                self.put(Category::Modules, "nvidia parameter", name, value);
            }
        }
    }

    fn functions(&mut self, source: &dyn Source, inventory: &Inventory) {
        for gpu in &inventory.gpus {
            if let Some(function) = inventory.function(gpu.bdf) {
                let name = gpu.index.to_string();
                self.function(source, Category::Gpus, &name, function);
                let largest = function.bars.by_ref().and_then(|bars| {
                    let sizes = bars.iter().map(|bar| bar.size).max();
                    sizes
                        .map(|size| format!("{} MiB", size >> 20))
                        .ok_or(Absence::Missing)
                });
                self.put(Category::Gpus, &name, "largest BAR", largest);
                let information = format!("/proc/driver/nvidia/gpus/{}/information", gpu.bdf);
                for line in lines(source, &information) {
                    let known = [
                        ("Model", "model"),
                        ("Video BIOS", "VBIOS"),
                        ("GPU Firmware", "firmware"),
                    ];
                    let fact = known.iter().find_map(|(start, what)| {
                        Some((what, line.strip_prefix(start)?.strip_prefix(':')?.trim()))
                    });
                    if let Some((what, value)) = fact {
                        self.put(Category::Gpus, &name, what, Ok(value.to_owned()));
                    }
                }
            }
        }
        for (device, bdf) in inventory.rdma_functions() {
            if let Some(function) = inventory.function(bdf) {
                self.function(source, Category::Nics, &device.name, function);
                let speed = function.link.by_ref().map(|link| link.speed.to_string());
                self.put(Category::Nics, &device.name, "link speed", speed);
            }
        }
        let ends = (inventory.gpus.iter().map(|gpu| gpu.bdf))
            .chain(inventory.rdma_functions().map(|(_, bdf)| bdf));
        let tree = inventory.tree.as_ref().ok();
        let mut bridges: Vec<_> = ends
            .filter_map(|bdf| Some(tree?.chain(bdf)?.1))
            .flatten()
            .collect();
        bridges.sort();
        bridges.dedup();
        for function in bridges
            .into_iter()
            .filter_map(|bdf| inventory.function(bdf))
        {
            let name = function.bdf.to_string();
            self.function(source, Category::Ports, &name, function);
            let is_downstream = function.express.as_ref().ok().is_none_or(|express| {
                matches!(
                    express.port,
                    PortType::RootPort | PortType::SwitchDownstream
                )
            });
            if is_downstream {
                let acs = function.acs.by_ref().map(|acs| acs.control.to_string());
                self.put(Category::Ports, &name, "ACS", acs);
            }
        }
    }

    /// Adds the properties of a PCI function on a path between GPUs and NICs.
    fn function(
        &mut self,
        source: &dyn Source,
        category: Category,
        name: &str,
        function: &Function,
    ) {
        self.there(category, name);
        let identity = &function.identity;
        let id = identity.vendor.zip(identity.device);
        let id = id.map(|(vendor, device)| format!("{:04x}:{:04x}", vendor.0, device.0));
        let express = function.express.by_ref();
        let on = |on: bool| if on { "on" } else { "off" }.to_owned();
        let group = source.text(&format!(
            "/sys/bus/pci/devices/{}/iommu_group/type",
            function.bdf
        ));
        let facts = [
            ("address", Ok(function.bdf.to_string())),
            ("id", id.ok_or(Absence::Missing)),
            ("driver", function.driver.clone()),
            ("NUMA node", function.numa.by_ref().map(ToString::to_string)),
            (
                "link width",
                function.link.by_ref().map(|link| link.width.to_string()),
            ),
            (
                "best link",
                function.link_capable.by_ref().map(ToString::to_string),
            ),
            ("IOMMU", group),
            ("MPS", express.map(|express| express.payload.to_string())),
            (
                "MRRS",
                express.map(|express| express.read_request.to_string()),
            ),
            (
                "relaxed ordering",
                express.map(|express| on(express.relaxed_ordering)),
            ),
            (
                "8-bit tags",
                express.map(|express| on(express.extended_tags)),
            ),
            (
                "10-bit tags",
                express.map(|express| on(express.ten_bit_tags)),
            ),
            ("ATS", function.ats.by_ref().map(|ats| on(ats.enabled))),
        ];
        for (what, value) in facts {
            // A property that one function of a kind lacks is lacking in others of the kind, too.
            if value != Err(Absence::Missing) {
                self.put(category, name, what, value);
            }
        }
    }

    fn ports_of_nics(&mut self, source: &dyn Source, inventory: &Inventory) {
        let netdevs = inventory.netdevs.as_ref().ok();
        for device in inventory.rdma.as_ref().ok().into_iter().flatten() {
            let name = &device.name;
            self.there(Category::Nics, name);
            self.put(Category::Nics, name, "firmware", device.firmware.clone());
            self.put(Category::Nics, name, "board", device.board.clone());
            for port in &device.ports {
                let number = port.number;
                for (what, value) in [
                    ("state", port.state.by_ref().map(ToString::to_string)),
                    ("rate", port.rate.clone()),
                    ("link layer", port.link_layer.clone()),
                ] {
                    let what = format!("port {number} {what}");
                    self.put(Category::Nics, name, &what, value);
                }
            }
            let netdevs = netdevs.map(|all| device.netdevs(all)).unwrap_or_default();
            if let Some(netdev) = netdevs.first() {
                let mtu = netdev.mtu.by_ref().map(ToString::to_string);
                self.put(Category::Nics, name, "MTU", mtu);
                let index = roce_index(source, name);
                self.put(
                    Category::Nics,
                    name,
                    "first RoCE v2 GID with an IPv4 address",
                    index,
                );
            }
        }
    }

    fn distances(&mut self, inventory: &Inventory) {
        let Ok(topology) = inventory.topology() else {
            return;
        };
        let nics: Vec<_> = inventory.rdma_functions().collect();
        let gpus = inventory.gpus.iter().map(|gpu| gpu.bdf);
        let distances = topology.distances(gpus.chain(nics.iter().map(|(_, bdf)| *bdf)));
        for (row, gpu) in inventory.gpus.iter().enumerate() {
            for (column, (device, _)) in (inventory.gpus.len()..).zip(&nics) {
                if let Some(class) = distances.smi(row, column) {
                    let subject = format!("{} {}", gpu.index, device.name);
                    let class = Ok(class.to_string());
                    self.put(Category::Topology, &subject, "class", class);
                }
            }
        }
    }

    fn limits(&mut self, source: &dyn Source) {
        let names = source.list(virtual_path::LIMITS);
        for name in names.ok().unwrap_or_default() {
            let path = format!("{}/{name}", virtual_path::LIMITS);
            let locked = source.text(&path).and_then(|text| {
                let mut lines = text.lines();
                let line = lines.find_map(|line| line.strip_prefix("Max locked memory"));
                let words = line.map(|rest| rest.split_whitespace().take(2).collect::<Vec<_>>());
                words.map(|words| words.join(" / ")).ok_or(Absence::Missing)
            });
            self.put(Category::Limits, &name, "memlock", locked);
        }
        let units = source.list(virtual_path::SYSTEMD);
        for name in units.ok().unwrap_or_default() {
            for line in lines(source, &format!("{}/{name}", virtual_path::SYSTEMD)) {
                if let Some((what, value)) = line.split_once('=')
                    && matches!(
                        what,
                        "ActiveState" | "UnitFileState" | "LimitMEMLOCK" | "DefaultLimitMEMLOCK"
                    )
                {
                    self.put(Category::Limits, &name, what, Ok(value.to_owned()));
                }
            }
        }
    }

    fn libraries(&mut self, source: &dyn Source) {
        for line in lines(source, virtual_path::LIBRARIES) {
            // Link targets contain the versions.
            if let Some((path, target)) = line.split_once(" -> ") {
                let version = Ok(target.to_owned());
                self.put(Category::Libraries, path, "leads to", version);
            }
        }
    }
}

/// Returns the lines of a file; empty if it is unknown.
fn lines(source: &dyn Source, path: &str) -> Vec<String> {
    let text = source.text(path).ok().unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Returns the index of the GID that applications should use.
fn roce_index(source: &dyn Source, device: &str) -> Datum<String> {
    let gids = RdmaGid::read_all(source, device, 1)?;
    let best = gids.iter().find(|gid| gid.is_ipv4() && gid.is_v2());
    best.map(|gid| gid.index.to_string())
        .ok_or(Absence::Missing)
}
