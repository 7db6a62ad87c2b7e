//! The links between a function and the root complex.

use gdr_node::pci::{CapabilityId, Express, Function, Link};
use gdr_node::{Absence, Bdf, Datum, DatumExt};

use crate::context::Context;
use crate::fix::{Action, Register};
use crate::runner::Unjudged;

/// A link: a port and the function below it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hop<'a> {
    /// The port above; `None` if the node does not show it, as in many guests.
    pub(super) upper: Option<&'a Function>,
    /// The function below the port.
    pub(super) lower: &'a Function,
}

impl Hop<'_> {
    /// Returns the current speed and width: from the lower end, else from the upper end.
    pub(super) fn now(&self) -> Datum<Link> {
        self.lower.link.or(match self.upper {
            Some(upper) => upper.link,
            None => self.lower.link,
        })
    }

    /// Returns the absence of the capability of an end, if one is absent. The best of both ends is then not certain.
    pub(super) fn unsure(&self) -> Option<Datum<Link>> {
        let ends = [Some(self.lower), self.upper];
        (ends.into_iter().flatten())
            .map(|end| end.link_capable)
            .find(|best| !best.is_ok())
    }

    /// Returns the best speed and width that both ends support; of one end, if the other is not known.
    pub(super) fn best(&self) -> Datum<Link> {
        let lower = self.lower.link_capable;
        let upper = self.upper.map(|upper| &upper.link_capable);
        match (lower, upper) {
            (Ok(lower), Some(Ok(upper))) => Ok(lower.meet(*upper)),
            (Ok(lower), _) => Ok(lower),
            (_, Some(Ok(upper))) => Ok(*upper),
            (absent, _) => absent,
        }
    }
}

/// Returns the links above a function, its own first.
///
/// From the root complex down, downstream and upstream ports alternate: a root port, then the
/// upstream port of a switch and one of its downstream ports. The port types in config space
/// decide; without them, the position does.
pub(super) fn hops<'a>(context: &Context<'a>, bdf: Bdf) -> Vec<Hop<'a>> {
    let Some(tree) = context.inventory.tree.as_ref().ok() else {
        return Vec::new();
    };
    let (Some((_, bridges)), Some(function)) = (tree.chain(bdf), tree.get(bdf)) else {
        return Vec::new();
    };
    let path: Vec<&Function> = (bridges.iter())
        .filter_map(|bridge| tree.get(*bridge))
        .chain([function])
        .collect();
    if let [alone] = path[..] {
        return vec![Hop {
            upper: None,
            lower: alone,
        }];
    }
    let leads_down = |(place, bridge): (usize, &Function)| match &bridge.express {
        Ok(express) => express.port.is_downstream(),
        _ => place.is_multiple_of(2),
    };
    (path.windows(2).enumerate())
        .filter(|(place, ends)| leads_down((*place, ends[0])))
        .map(|(_, ends)| Hop {
            upper: Some(ends[0]),
            lower: ends[1],
        })
        .rev()
        .collect()
}

/// Returns the Device Control register of a function; `None` where its config space was not read.
fn device_control(function: &Function) -> Option<u16> {
    /// The offset in the capability.
    const DEVICE_CONTROL: u16 = 0x08;
    let config = function.config.as_ref().ok()?;
    let at = config.find(CapabilityId::PCI_EXPRESS).ok()?;
    config.half(at.plus(DEVICE_CONTROL)).ok()
}

/// Sets the bits `mask` of a function's Device Control as in `value`. The change can be undone if
/// the register was read.
pub(super) fn write_device_control(function: &Function, mask: u16, value: u16) -> Action {
    let bdf = function.bdf;
    match device_control(function) {
        Some(was) => Action::WriteConfig {
            bdf,
            register: Register::DeviceControl,
            mask,
            value,
            was,
        },
        None => Action::run(format!(
            "setpci -s {bdf} CAP_EXP+8.w={value:04x}:{mask:04x}"
        )),
    }
}

/// Returns the PCI Express capability of a function with registers of its own. Virtual functions have most registers in
/// their physical function, and conventional PCI functions have no capability.
pub(super) fn own_express(function: &Function) -> Result<Datum<&Express>, Unjudged> {
    if function.is_virtual() || function.express == Err(Absence::Missing) {
        return Err(Unjudged::OutOfScope);
    }
    Ok(function.express.by_ref())
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource, example};

    use super::*;

    fn addresses(node: &MemorySource, bdf: &str) -> Vec<(Option<String>, String)> {
        let inventory = Inventory::read(node);
        let context = Context::new(node, &inventory);
        hops(&context, bdf.parse().unwrap())
            .iter()
            .map(|hop| {
                (
                    hop.upper.map(|it| it.bdf.to_string()),
                    hop.lower.bdf.to_string(),
                )
            })
            .collect()
    }

    #[test]
    fn a_device_behind_a_switch_has_two_links() {
        let expected = [
            (Some("0000:17:00.0".to_owned()), "0000:18:00.0".to_owned()),
            (Some("0000:15:01.0".to_owned()), "0000:16:00.0".to_owned()),
        ];
        assert_eq!(addresses(&example::healthy(), example::GPUS[0]), expected);
        // The same without root, when the port types are not readable.
        let mut node = example::healthy();
        for bdf in ["0000:15:01.0", "0000:16:00.0", "0000:17:00.0"] {
            node = example::edit(node, bdf, |port| {
                port.header_only();
            });
        }
        assert_eq!(addresses(&node, example::GPUS[0]), expected);
    }

    #[test]
    fn a_device_below_a_hidden_port_has_a_link() {
        let node = MemorySource::new()
            .link_to(
                "/sys/bus/pci/devices/0000:00:05.0",
                "../../../devices/pci0000:00/0000:00:05.0",
            )
            .file("/sys/devices/pci0000:00/0000:00:05.0/class", "0x020000\n");
        assert_eq!(
            addresses(&node, "00:05.0"),
            [(None, "0000:00:05.0".to_owned())]
        );
        assert!(addresses(&node, "00:06.0").is_empty());
    }
}
