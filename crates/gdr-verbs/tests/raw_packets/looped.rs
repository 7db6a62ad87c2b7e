//! Frames that return to the interface that sends them, as on a network card.

use super::*;

/// The number of receives of each end: more than the expected frames, and no more than its queue holds.
const RECEIVES: usize = 8;
/// A multicast group (IANA: IPv4 multicast).
const GROUP: [u8; 6] = [0x01, 0x00, 0x5e, 0x00, 0x00, 0x09];

/// Returns a frame for this address, whose last byte is `mark`.
fn frame_to(address: [u8; 6], mark: u8) -> Vec<u8> {
    let mut frame = frame(PORT);
    frame[..6].copy_from_slice(&address);
    *frame.last_mut().unwrap() = mark;
    frame
}

/// An end that receives every frame that its interface receives.
struct Receiver {
    end: End,
    flow: *mut ibv_flow,
    rooms: Vec<Vec<u8>>,
    regions: Vec<*mut ibv_mr>,
}

impl Receiver {
    fn new(verbs: &'static Verbs, device: *mut ibv_device) -> Self {
        let end = End::new(verbs, device);
        let mut rooms = vec![vec![0; 2048]; RECEIVES];
        let regions: Vec<_> = rooms.iter_mut().map(|room| end.register(room)).collect();
        for (region, id) in regions.iter().zip(0..) {
            end.post_receive(id, *region);
        }
        let flow = end.steer(RECEIVER, PORT);
        Self {
            end,
            flow,
            rooms,
            regions,
        }
    }

    /// Returns the mark of the next frame.
    fn next(&self) -> u8 {
        let done = self.end.completion(LIMIT).expect("no frame came back");
        assert_eq!(done.status, ibv_wc_status::IBV_WC_SUCCESS);
        self.rooms[done.wr_id as usize][done.byte_len as usize - 1]
    }

    fn close(self) {
        // SAFETY: the flow exists, and is not used again.
        unsafe { ibv_destroy_flow(self.flow) }.unwrap();
        self.end.close(&self.regions);
    }
}

/// Sends frames with the marks 1, 2 and so on, one for each address. A frame to the last address certainly returns, so
/// that all earlier frames have arrived by then or never will.
fn send(sender: &End, addresses: &[[u8; 6]]) {
    for (address, mark) in addresses.iter().zip(1..) {
        let mut bytes = frame_to(*address, mark);
        let region = sender.register(&mut bytes);
        sender.send(region);
        // SAFETY: the region exists, and is not used again.
        unsafe { sender.verbs.ibv_dereg_mr(region) }.unwrap();
    }
}

/// Uses two devices at addresses of one interface: the sender, and a device with a socket of its own, as in another
/// process.
pub(crate) fn by_an_interface(
    verbs: &'static Verbs,
    device: *mut ibv_device,
    other: *mut ibv_device,
) {
    let own = namespace::hardware_address(c"v0").unwrap();
    let foreign = [0x0c, 0x42, 0xa1, 0x73, 0x8d, 0xe6];
    let (near, far) = (Receiver::new(verbs, device), Receiver::new(verbs, other));
    let sender = End::new(verbs, device);
    send(&sender, &[own, GROUP, foreign, [0xff; 6], own]);
    for receiver in [&near, &far] {
        let marks: Vec<_> = (0..4).map(|_| receiver.next()).collect();
        assert_eq!(marks, [1, 2, 4, 5], "each once, and not the third");
    }
    near.close();
    far.close();
    sender.close(&[]);
}

/// Checks that the loopback interface receives everything that it sends, once.
pub(crate) fn by_the_loopback_interface(verbs: &'static Verbs, device: *mut ibv_device) {
    let receiver = Receiver::new(verbs, device);
    let sender = End::new(verbs, device);
    send(&sender, &[[0; 6], GROUP, [0; 6]]);
    let marks: Vec<_> = (0..3).map(|_| receiver.next()).collect();
    assert_eq!(marks, [1, 2, 3]);
    receiver.close();
    sender.close(&[]);
}
