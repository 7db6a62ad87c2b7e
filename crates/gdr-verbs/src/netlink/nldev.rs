//! Answers about devices (`RDMA_NL_NLDEV`), by `rdma/rdma_netlink.h` and `drivers/infiniband/core/nldev.c` of Linux.

use super::message::{Message, Scope};
use crate::errno::Errno;

/// The client of the messages: `RDMA_NL_NLDEV`, in the bits from ten on.
const CLIENT: u16 = 5 << 10;

/// The commands that are answered: `RDMA_NLDEV_CMD_GET`, `_PORT_GET`, `_SYS_GET` and `_GET_CHARDEV`.
const GET: u16 = CLIENT | 1;
const PORT_GET: u16 = CLIENT | 5;
const SYS_GET: u16 = CLIENT | 6;
const GET_CHARDEV: u16 = CLIENT | 15;

/// The types of attributes: `RDMA_NLDEV_ATTR_DEV_INDEX` and so on.
const DEV_INDEX: u16 = 1;
const DEV_NAME: u16 = 2;
const PORT_INDEX: u16 = 3;
const FW_VERSION: u16 = 5;
const NODE_GUID: u16 = 6;
const SYS_IMAGE_GUID: u16 = 7;
const PORT_STATE: u16 = 12;
const PORT_PHYS_STATE: u16 = 13;
const DEV_NODE_TYPE: u16 = 14;
const NDEV_INDEX: u16 = 50;
const NDEV_NAME: u16 = 51;
const NETNS_MODE: u16 = 66;
const DEV_PROTOCOL: u16 = 67;
const CHARDEV_TYPE: u16 = 69;
const CHARDEV_NAME: u16 = 70;
const CHARDEV_ABI: u16 = 71;
const CHARDEV: u16 = 72;

/// `RDMA_NODE_IB_CA`.
const CHANNEL_ADAPTER: u8 = 1;
/// The only port of a device.
const PORT: u32 = 1;
/// `RDMA_SYS_ATTR_NETNS_MODE`: devices are seen from every network namespace.
const SHARED: u8 = 1;
/// The type of the character device of rdma_cm, which is this library's.
const CONNECTIONS: &str = "rdma_cm";

/// What netlink says of a device.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) guid: u64,
    pub(super) interface: String,
    pub(super) interface_index: u32,
    /// The numbers of the port's state and of its physical state, as in sysfs.
    pub(super) state: u8,
    pub(super) physical_state: u8,
    pub(super) node: CharacterDevice,
}

/// A file in `/dev/infiniband`.
#[derive(Clone, Debug)]
pub(super) struct CharacterDevice {
    pub(super) name: String,
    pub(super) abi: u64,
    pub(super) number: u64,
}

/// Who knows what a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answerer {
    /// The kernel, if it has RDMA netlink.
    Kernel,
    /// The devices here.
    Own,
    /// First the kernel, then the devices here.
    Both,
}

impl Answerer {
    pub(super) fn of(request: &Message, devices: &[Device]) -> Self {
        match (request.kind(), request.scope()) {
            (GET, Scope::All) => Self::Both,
            (GET_CHARDEV, _) if request.text(CHARDEV_TYPE) == Some(CONNECTIONS) => Self::Own,
            _ if device_of(request, devices).is_some() => Self::Own,
            _ => Self::Kernel,
        }
    }
}

fn device_of<'a>(request: &Message, devices: &'a [Device]) -> Option<&'a Device> {
    let index = request.number(DEV_INDEX)?;
    devices.iter().find(|device| device.index == index)
}

/// The answers to a request, without the one that ends them.
///
/// # Errors
/// `EINVAL` as from the kernel if it names no device here, or not the port; `EOPNOTSUPP` for what is not known of a
/// device here, and for what would change it.
pub(super) fn answers(
    request: &Message,
    devices: &[Device],
    connections: &CharacterDevice,
) -> Result<Vec<Message>, Errno> {
    match (request.kind(), request.scope()) {
        (GET, Scope::All) => {
            let answers = devices.iter().map(|device| device.in_answer(request));
            return Ok(answers.collect());
        }
        (SYS_GET, _) => return Ok(vec![request.answer().with(NETNS_MODE, &[SHARED])]),
        (GET_CHARDEV, _) if request.text(CHARDEV_TYPE) == Some(CONNECTIONS) => {
            return Ok(vec![connections.in_answer(request.answer())]);
        }
        _ => {}
    }
    let device = device_of(request, devices).ok_or(Errno::INVAL)?;
    let answer = match request.kind() {
        GET => device.in_answer(request),
        PORT_GET if request.scope() == Scope::All || request.number(PORT_INDEX) == Some(PORT) => {
            device.port_in_answer(request)
        }
        PORT_GET => return Err(Errno::INVAL),
        GET_CHARDEV if request.text(CHARDEV_TYPE) == Some("uverbs") => {
            let index = device.index.to_ne_bytes();
            device
                .node
                .in_answer(request.answer().with(DEV_INDEX, &index))
        }
        GET_CHARDEV => return Err(Errno::NODEV),
        _ => return Err(Errno::OPNOTSUPP),
    };
    Ok(vec![answer])
}

impl Device {
    fn identified(&self, request: &Message) -> Message {
        request
            .answer()
            .with(DEV_INDEX, &self.index.to_ne_bytes())
            .with_text(DEV_NAME, &self.name)
            // For a device this is the number of ports, for a port its index.
            .with(PORT_INDEX, &PORT.to_ne_bytes())
    }

    fn in_answer(&self, request: &Message) -> Message {
        let guid = self.guid.to_ne_bytes();
        self.identified(request)
            .with_text(FW_VERSION, env!("CARGO_PKG_VERSION"))
            .with(NODE_GUID, &guid)
            .with(SYS_IMAGE_GUID, &guid)
            .with(DEV_NODE_TYPE, &[CHANNEL_ADAPTER])
            .with_text(DEV_PROTOCOL, "roce")
    }

    fn port_in_answer(&self, request: &Message) -> Message {
        let port = self
            .identified(request)
            .with(PORT_STATE, &[self.state])
            .with(PORT_PHYS_STATE, &[self.physical_state]);
        if self.interface_index == 0 {
            return port;
        }
        port.with(NDEV_INDEX, &self.interface_index.to_ne_bytes())
            .with_text(NDEV_NAME, &self.interface)
    }
}

impl CharacterDevice {
    fn in_answer(&self, answer: Message) -> Message {
        answer
            .with(CHARDEV, &self.number.to_ne_bytes())
            .with(CHARDEV_ABI, &self.abi.to_ne_bytes())
            .with_text(CHARDEV_NAME, &self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: u32) -> Device {
        Device {
            index,
            name: format!("gdr{index}"),
            guid: 7,
            interface: "lo".to_owned(),
            interface_index: 1,
            state: 4,
            physical_state: 5,
            node: CharacterDevice {
                name: format!("uverbs{index}"),
                abi: 1,
                number: 231 << 8,
            },
        }
    }

    fn connections() -> CharacterDevice {
        CharacterDevice {
            name: CONNECTIONS.to_owned(),
            abi: 4,
            number: 1,
        }
    }

    fn asked(kind: u16, flags: u16) -> Message {
        let mut bytes = 16_u32.to_ne_bytes().to_vec();
        for half in [kind, flags, 1, 0, 0, 0] {
            bytes.extend(half.to_ne_bytes());
        }
        Message::split(&bytes).unwrap().remove(0)
    }

    const DUMP: u16 = 0x300;

    #[test]
    fn each_device_and_its_port_are_listed() {
        let devices = [device(0), device(1)];
        let listed = answers(&asked(GET, DUMP), &devices, &connections()).unwrap();
        let names: Vec<_> = listed.iter().map(|answer| answer.text(DEV_NAME)).collect();
        assert_eq!(names, [Some("gdr0"), Some("gdr1")]);
        let port = asked(PORT_GET, DUMP).with(DEV_INDEX, &1_u32.to_ne_bytes());
        let ports = answers(&port, &devices, &connections()).unwrap();
        assert_eq!(ports.len(), 1);
        assert_eq!(ports[0].text(NDEV_NAME), Some("lo"));
        assert_eq!(ports[0].number(PORT_INDEX), Some(1));
    }

    #[test]
    fn what_no_device_here_has_is_an_error() {
        let refused =
            |request: Message| answers(&request, &[device(0)], &connections()).unwrap_err();
        let of = |kind, index: u32| asked(kind, 0).with(DEV_INDEX, &index.to_ne_bytes());
        assert_eq!(refused(asked(GET, 0)), Errno::INVAL);
        assert_eq!(refused(of(GET, 1)), Errno::INVAL);
        assert_eq!(refused(of(PORT_GET, 0)), Errno::INVAL);
        let second = of(PORT_GET, 0).with(PORT_INDEX, &2_u32.to_ne_bytes());
        assert_eq!(refused(second), Errno::INVAL);
        assert_eq!(refused(of(CLIENT | 2, 0)), Errno::OPNOTSUPP, "SET");
        assert_eq!(
            refused(of(GET_CHARDEV, 0).with_text(CHARDEV_TYPE, "umad")),
            Errno::NODEV
        );
    }

    #[test]
    fn the_kernel_answers_for_what_is_its_own() {
        let devices = [device(1 << 16)];
        let of = |kind, index: u32| asked(kind, 0).with(DEV_INDEX, &index.to_ne_bytes());
        let who = |request: &Message| Answerer::of(request, &devices);
        assert_eq!(who(&asked(GET, DUMP)), Answerer::Both);
        assert_eq!(who(&of(GET, 0)), Answerer::Kernel);
        assert_eq!(who(&of(GET, 1 << 16)), Answerer::Own);
        assert_eq!(who(&asked(SYS_GET, 0)), Answerer::Kernel);
        let connections = asked(GET_CHARDEV, 0).with_text(CHARDEV_TYPE, CONNECTIONS);
        assert_eq!(who(&connections), Answerer::Own);
    }
}
