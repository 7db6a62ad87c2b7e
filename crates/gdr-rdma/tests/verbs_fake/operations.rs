//! Every operation moves the right bytes.

use gdr_rdma::{
    Access, AtomicOp, Buffer, Completion, CompletionQueue, ConnectionOptions, Device, Immediate,
    MemoryRegion, Mtu, QueuePair, QueuePairOptions, RecvRequest, Registration, SendRequest, State,
    WcOpcode, WcStatus, WrId,
};

use super::{one_device, open, soon};

/// Two connected queue pairs of a device with a region each.
struct Ends {
    near: QueuePair,
    far: QueuePair,
    queue: CompletionQueue,
    source: MemoryRegion,
    target: MemoryRegion,
}

fn ends(device: &Device) -> Ends {
    let domain = device.protection_domain();
    let queue = device.completion_queue(256);
    let pair = || domain.queue_pair(&QueuePairOptions::new(&queue)).unwrap();
    let (near, far) = (pair(), pair());
    let options = ConnectionOptions::new(Mtu::B1024);
    near.connect(&far.endpoint(), &options).unwrap();
    far.connect(&near.endpoint(), &options).unwrap();
    let all =
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let region = || {
        domain
            .register(&Buffer::host(1 << 16).unwrap(), all)
            .unwrap()
    };
    let (source, target) = (region(), region());
    Ends {
        near,
        far,
        queue,
        source,
        target,
    }
}

impl Ends {
    fn next(&self) -> Completion {
        self.queue.wait(soon()).unwrap()
    }

    fn at(region: &MemoryRegion, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        region.buffer().copy_out(offset, &mut bytes).unwrap();
        bytes
    }
}

#[test]
fn writes_and_reads_move_bytes_and_complete() {
    let fake = one_device();
    let device = open(&fake);
    let ends = ends(&device);
    assert_eq!(ends.near.state(), State::ReadyToSend);
    assert_eq!(ends.source.route(), Registration::HostPages);
    ends.source.buffer().copy_in(0, b"forth").unwrap();
    let forth = ends.source.segment(0, 5).unwrap();
    let write = SendRequest::write(WrId(7), ends.target.remote().at(100)).segment(forth);
    ends.near.post_send(write).unwrap();
    let done = ends.next();
    assert_eq!(
        (done.id, done.status, done.opcode, done.byte_len),
        (WrId(7), WcStatus::Success, WcOpcode::Write, 5)
    );
    assert_eq!(Ends::at(&ends.target, 100, 5), b"forth");

    let back = ends.source.segment(64, 5).unwrap();
    let read = SendRequest::read(WrId(8), ends.target.remote().at(100)).segment(back);
    ends.near.post_send(read).unwrap();
    let done = ends.next();
    assert_eq!((done.id, done.opcode), (WrId(8), WcOpcode::Read));
    assert_eq!(Ends::at(&ends.source, 64, 5), b"forth");
}

#[test]
fn messages_and_immediates_complete_receives() {
    let fake = one_device();
    let device = open(&fake);
    let ends = ends(&device);
    let room = ends.target.segment(0, 64).unwrap();
    ends.far
        .post_recv(RecvRequest::new(WrId(1)).segment(room))
        .unwrap();
    ends.far.post_recv(RecvRequest::new(WrId(2))).unwrap();
    ends.source.buffer().copy_in(0, b"hello").unwrap();
    let hello = || ends.source.segment(0, 5).unwrap();
    let send = SendRequest::send(WrId(3))
        .immediate(Immediate(0x0102_0304))
        .segment(hello());
    ends.near.post_send(send).unwrap();
    let write = SendRequest::write(WrId(4), ends.target.remote().at(1000))
        .immediate(Immediate(9))
        .segment(hello());
    ends.near.post_send(write).unwrap();
    let mut done: Vec<Completion> = (0..4).map(|_| ends.next()).collect();
    done.sort_by_key(|completion| completion.id.0);
    assert!(
        done.iter().all(|it| it.status == WcStatus::Success),
        "{done:?}"
    );
    assert_eq!(done[0].immediate, Some(Immediate(0x0102_0304)));
    assert_eq!((done[0].opcode, done[0].byte_len), (WcOpcode::Recv, 5));
    assert_eq!(done[1].opcode, WcOpcode::RecvWriteImmediate);
    assert_eq!(done[1].immediate, Some(Immediate(9)));
    assert_eq!(Ends::at(&ends.target, 0, 5), b"hello");
    assert_eq!(Ends::at(&ends.target, 1000, 5), b"hello");
}

#[test]
fn atomics_answer_what_was_there() {
    let fake = one_device();
    let device = open(&fake);
    let ends = ends(&device);
    ends.target
        .buffer()
        .copy_in(8, &40u64.to_ne_bytes())
        .unwrap();
    let answer = || ends.source.segment(0, 8).unwrap();
    let add = AtomicOp::FetchAdd { add: 2 };
    let request = SendRequest::atomic(WrId(1), ends.target.remote().at(8), add).segment(answer());
    ends.near.post_send(request).unwrap();
    assert_eq!(ends.next().opcode, WcOpcode::FetchAdd);
    assert_eq!(ends.source.buffer().load_u64(0).unwrap(), 40);
    let swap = AtomicOp::CompareSwap {
        compare: 42,
        swap: 7,
    };
    let request = SendRequest::atomic(WrId(2), ends.target.remote().at(8), swap).segment(answer());
    ends.near.post_send(request).unwrap();
    assert_eq!(ends.next().opcode, WcOpcode::CompareSwap);
    assert_eq!(ends.source.buffer().load_u64(0).unwrap(), 42);
    assert_eq!(ends.target.buffer().load_u64(8).unwrap(), 7);
}

#[test]
fn nothing_is_left_when_all_is_dropped_in_any_order() {
    let fake = one_device();
    let device = open(&fake);
    let Ends {
        near,
        far,
        queue,
        source,
        target,
    } = ends(&device);
    drop(device);
    drop(queue);
    drop(source);
    drop(near);
    drop(target);
    drop(far);
    fake.assert_clean();
}
