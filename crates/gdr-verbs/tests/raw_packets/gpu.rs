//! Frames between two positions in memory of a simulated GPU, over the loopback interface of a namespace. C programs
//! refer to such memory by addresses of the CUDA driver, which is not available here, so this test uses the engine
//! below the C interface.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gdr_copy::Context;
use gdr_cuda::{DeviceBuffer, Gpu, MemoryKind, Ordinal, SimDriver};
use gdr_nic::{
    Access, Buffer, BufferKind, Capabilities, Completion, Lkey, SoftOptions, WcOpcode, WcStatus,
    WrId,
};
use gdr_nic::{
    CompletionQueue, Data, Device, Domain, FlowKind, FlowRule, FlowSpec, FrameSendRequest, Masked,
    PortMatch, QueuePair, Queues, RawPackets, RecvRequest, Region, Segment, SendFlags,
};

use crate::{AGAIN, BEFORE, LIMIT, PORT, assert_is_sent_frame, frame};

/// The length of the GPU memory: two GPU pages.
const LEN: u64 = 128 << 10;
/// The offset of the received frame, which crosses the boundary of the pages.
const TO: u64 = (64 << 10) - 30;
const ROOM: u32 = 2048;
const SENT: WrId = WrId(1);
const RECEIVED: WrId = WrId(2);

/// A raw packet queue pair whose requests are in memory of a GPU.
struct End {
    pair: QueuePair<RawPackets>,
    queue: CompletionQueue,
    region: Region,
}

impl End {
    fn new(memory: Buffer) -> Self {
        let options = SoftOptions::new(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let device = Device::open(&options, None).unwrap();
        let (domain, queue) = (Domain::new(), device.completion_queue(8, None));
        let queues = Queues {
            send: &queue,
            recv: &queue,
            shared_receives: None,
        };
        let sizes = Capabilities {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_inline: 0,
        };
        let pair = device.raw_packet_queue_pair(domain, queues, sizes).unwrap();
        pair.to_init().unwrap();
        pair.to_rtr().unwrap();
        pair.to_rts().unwrap();
        let whole = (memory, 0, LEN);
        let region = device.register_buffer(domain, whole, 0, Access::LOCAL_WRITE);
        Self {
            pair,
            queue,
            region: region.unwrap(),
        }
    }

    fn segment(&self, addr: u64, len: u32) -> Segment {
        let lkey = Lkey(self.region.key());
        Segment { lkey, addr, len }
    }

    fn post_receive(&self) {
        let request = RecvRequest {
            id: RECEIVED,
            segments: &[self.segment(TO, 20), self.segment(TO + 20, ROOM - 20)],
        };
        let posted = self.pair.post_recvs(|queue| queue.push(&request)).unwrap();
        assert_eq!(posted, Ok(()));
    }

    /// Sends the first `len` bytes.
    fn post_send(&self, len: u32) {
        let request = FrameSendRequest {
            id: SENT,
            data: Data::Segments(&[self.segment(0, len)]),
            flags: SendFlags::SIGNALLED | SendFlags::IP_CHECKSUM,
        };
        let posted = self.pair.post_sends(|queue| queue.push(&request)).unwrap();
        assert_eq!(posted, Ok(()));
    }

    /// Returns the completion of a request, or `None` after `limit`.
    fn completion(&self, of: WrId, limit: Duration) -> Option<Completion> {
        let until = Instant::now() + limit;
        let mut found = None;
        while found.is_none() && Instant::now() < until {
            let take = &mut |completion: Completion| {
                assert_eq!(completion.status, WcStatus::Success);
                if completion.id == of {
                    found = Some(completion);
                }
            };
            self.queue.poll(1, take).unwrap();
        }
        found
    }
}

fn buffer(gpu: &Gpu, memory: &Arc<DeviceBuffer>, kind: BufferKind) -> Buffer {
    match kind {
        BufferKind::Staged => Buffer::staged(Arc::clone(memory)).unwrap(),
        _ => {
            let context = Context::builder().gpu(gpu).unwrap().open().unwrap();
            let pinned = context.pin(memory.ptr(), memory.len()).unwrap();
            Buffer::direct(pinned.map().unwrap()).unwrap()
        }
    }
}

pub(crate) fn exchange(kind: BufferKind) {
    let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
    let memory = Arc::new(gpu.allocate(MemoryKind::Plain, LEN).unwrap());
    memory.write(0, &vec![BEFORE; LEN as usize]).unwrap();
    let sent = frame(PORT);
    memory.write(0, &sent).unwrap();
    let end = End::new(buffer(&gpu, &memory, kind));
    let ports = PortMatch {
        destination: Masked {
            value: PORT,
            mask: u16::MAX,
        },
        ..Default::default()
    };
    let rule = FlowRule {
        kind: FlowKind::Normal,
        priority: 0,
        specs: vec![FlowSpec::Udp(ports)],
    };
    let _flow = end.pair.create_flow(rule).unwrap();
    end.post_receive();
    let until = Instant::now() + LIMIT;
    let completion = loop {
        assert!(Instant::now() < until, "nothing arrived within {LIMIT:?}");
        end.post_send(sent.len() as u32);
        if let Some(completion) = end.completion(RECEIVED, AGAIN) {
            break completion;
        }
    };
    assert_eq!(completion.opcode, WcOpcode::Recv);
    assert_eq!(completion.byte_len as usize, sent.len());
    assert!(completion.ip_checksum_ok);

    let mut all = vec![0; LEN as usize];
    memory.read(0, &mut all).unwrap();
    let (from, to) = all.split_at(TO as usize);
    assert_eq!(from[..sent.len()], sent, "the memory of the sender changed");
    let (received, behind) = to.split_at(sent.len());
    assert_is_sent_frame(received);
    let beside = from[sent.len()..].iter().chain(behind);
    assert!(beside.into_iter().all(|byte| *byte == BEFORE));
}
