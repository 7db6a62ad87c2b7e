//! Queue pairs for datagrams of the software NIC.

use gdr_nic::{Datagrams, Device, QueuePair};
use gdr_roce::{Psn, Qpn, State};

use super::queue_pair::{flatten, post_recv, with_queues};
use super::work_request::{KeyedSegments, data, take};
use crate::error::Result;
use crate::provider::{UdQueuePairInit, UdQueuePairOps};
use crate::types::Domain;
use crate::work_request::{RecvRequest, UdSendRequest};

/// A queue pair for datagrams.
#[derive(Debug)]
pub(super) struct NicUdQueuePair(QueuePair<Datagrams>);

impl NicUdQueuePair {
    pub(super) fn new(device: &Device, domain: Domain, init: &UdQueuePairInit<'_>) -> Result<Self> {
        let capabilities = init.queues.capabilities;
        let pair = with_queues(init.queues, |queues| {
            device.ud_queue_pair(domain, queues, capabilities, init.mtu)
        })?;
        pair.to_init(init.qkey)?;
        Ok(Self(pair))
    }
}

impl UdQueuePairOps for NicUdQueuePair {
    fn qpn(&self) -> Qpn {
        self.0.qpn()
    }

    fn state(&self) -> State {
        self.0.state()
    }

    fn to_rtr(&self) -> Result<()> {
        Ok(self.0.to_rtr()?)
    }

    fn to_rts(&self, sq_psn: Psn) -> Result<()> {
        Ok(self.0.to_rts(sq_psn)?)
    }

    fn to_error(&self) {
        // In a forked child the queue pair belongs to the parent.
        let _ = self.0.to_error();
    }

    fn post_sends(&self, requests: &mut [UdSendRequest]) -> (usize, Result<()>) {
        if requests.is_empty() {
            return (0, Ok(()));
        }
        let mut posted = 0;
        let outcome = self.0.post_sends(|queue| {
            for request in requests {
                let mut segments = KeyedSegments::new();
                queue.push(&gdr_roce::UdSendRequest {
                    id: request.id,
                    to: request.to.address,
                    dest_qpn: request.to.qpn,
                    qkey: request.to.qkey,
                    immediate: request.immediate,
                    data: data(&request.data, &mut segments),
                    flags: request.flags,
                })?;
                queue.retain(take(&mut request.data));
                posted += 1;
            }
            Ok(())
        });
        (posted, flatten(outcome))
    }

    fn post_recv(&self, mut request: RecvRequest) -> Result<()> {
        flatten(self.0.post_recvs(|queue| post_recv(queue, &mut request)))
    }
}
