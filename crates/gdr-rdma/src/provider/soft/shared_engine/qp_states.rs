//! The states of queue pairs, and what steers packets to them.

use gdr_roce::{
    Access, Psn, Qkey, Qpn, QueuePair, RawPacketQueuePair, RtrAttributes, RtsAttributes, State,
    StateError,
};

use super::SharedEngine;
use crate::error::Result;
use crate::outstanding;
use crate::provider::soft::packets::FlowId;
use crate::provider::soft::packets::flow::FlowRule;
use crate::provider::soft::qp_context::Peer;
use crate::provider::soft::qp_table::unknown_qp;

impl SharedEngine {
    pub(in crate::provider::soft) fn qp_state(&self, qpn: Qpn) -> State {
        self.lock().state(qpn).unwrap_or(State::Reset)
    }

    /// Changes the state of a connection from RESET to INIT.
    pub(in crate::provider::soft) fn qp_to_init(&self, qpn: Qpn, access: Access) -> Result<()> {
        let mut engine = self.lock();
        let roce = engine.schedule(qpn).and_then(|qp| qp.roce.connection());
        let roce = roce.ok_or_else(|| unknown_qp(State::Init))?;
        Ok(roce.to_init(access)?)
    }

    /// Changes the state of a queue pair for datagrams from RESET to INIT.
    pub(in crate::provider::soft) fn ud_to_init(&self, qpn: Qpn, qkey: Qkey) -> Result<()> {
        let mut engine = self.lock();
        let roce = engine.schedule(qpn).and_then(|qp| qp.roce.datagrams());
        let roce = roce.ok_or_else(|| unknown_qp(State::Init))?;
        Ok(roce.to_init(qkey)?)
    }

    /// Changes the queue key of a queue pair for datagrams, in any state.
    pub(in crate::provider::soft) fn set_qkey(&self, qpn: Qpn, qkey: Qkey) {
        let mut engine = self.lock();
        if let Some(roce) = engine.schedule(qpn).and_then(|qp| qp.roce.datagrams()) {
            roce.set_qkey(qkey);
        }
    }

    /// Changes the state to RESET: posted requests are discarded without a completion.
    pub(in crate::provider::soft) fn reset_qp(&self, qpn: Qpn) {
        let mut engine = self.lock();
        engine.acknowledge(qpn, &self.device.regions.read(self.shard));
        let segments = engine.reset(qpn);
        drop(engine);
        outstanding::release(segments);
    }

    pub(in crate::provider::soft) fn qp_to_rtr(
        &self,
        qpn: Qpn,
        peer: Peer,
        attributes: &RtrAttributes,
    ) -> Result<()> {
        let mut engine = self.lock();
        engine.check_alive()?;
        engine.connect(qpn, peer, attributes)
    }

    pub(in crate::provider::soft) fn qp_to_rts(
        &self,
        qpn: Qpn,
        attributes: &RtsAttributes,
    ) -> Result<()> {
        let mut engine = self.lock();
        engine.check_alive()?;
        let roce = engine.schedule(qpn).and_then(|qp| qp.roce.connection());
        let roce = roce.ok_or_else(|| unknown_qp(State::ReadyToSend))?;
        roce.to_rts(attributes)?;
        self.send_now(engine, self.clock().now());
        Ok(())
    }

    /// Changes a queue pair for datagrams from INIT to RTR.
    pub(in crate::provider::soft) fn ud_to_rtr(&self, qpn: Qpn) -> Result<()> {
        let mut engine = self.lock();
        engine.check_alive()?;
        engine.open_to_all(qpn)
    }

    /// Changes a queue pair for datagrams from RTR to RTS.
    pub(in crate::provider::soft) fn ud_to_rts(&self, qpn: Qpn, sq_psn: Psn) -> Result<()> {
        let mut engine = self.lock();
        engine.check_alive()?;
        let roce = engine.schedule(qpn).and_then(|qp| qp.roce.datagrams());
        let roce = roce.ok_or_else(|| unknown_qp(State::ReadyToSend))?;
        Ok(roce.to_rts(sq_psn)?)
    }

    /// Changes the state from RTS to SQD.
    pub(in crate::provider::soft) fn qp_to_sqd(&self, qpn: Qpn) -> Result<()> {
        let mut engine = self.lock();
        let qp = engine.schedule(qpn);
        let qp = qp.ok_or_else(|| unknown_qp(State::SendQueueDrained))?;
        qp.roce.enter_sqd()?;
        self.send_now(engine, self.clock().now());
        Ok(())
    }

    /// Changes the state from SQD or SQE to RTS.
    pub(in crate::provider::soft) fn resume_qp(&self, qpn: Qpn) -> Result<()> {
        let mut engine = self.lock();
        engine.check_alive()?;
        let qp = engine.schedule(qpn);
        let qp = qp.ok_or_else(|| unknown_qp(State::ReadyToSend))?;
        qp.roce.resume()?;
        self.send_now(engine, self.clock().now());
        Ok(())
    }

    /// Whether a queue pair in SQD finishes requests.
    pub(in crate::provider::soft) fn is_draining(&self, qpn: Qpn) -> bool {
        let mut engine = self.lock();
        engine.schedule(qpn).is_some_and(|qp| qp.roce.is_draining())
    }

    /// Changes a connection that exists.
    pub(in crate::provider::soft) fn change_connection(
        &self,
        qpn: Qpn,
        change: impl FnOnce(&mut QueuePair),
    ) {
        let mut engine = self.lock();
        if let Some(roce) = engine.schedule(qpn).and_then(|qp| qp.roce.connection()) {
            change(roce);
        }
    }

    /// Sends the packets of a connection to another address.
    pub(in crate::provider::soft) fn move_peer(&self, qpn: Qpn, peer: Peer) -> Result<()> {
        self.lock().move_peer(qpn, peer)
    }

    /// Changes the state of a raw packet queue pair to `to`.
    pub(in crate::provider::soft) fn change_raw_packets(
        &self,
        qpn: Qpn,
        to: State,
        change: impl FnOnce(&mut RawPacketQueuePair) -> std::result::Result<(), StateError>,
    ) -> Result<()> {
        let mut engine = self.lock();
        engine.check_alive()?;
        let pair = engine.schedule(qpn).and_then(|qp| qp.roce.raw_packets());
        Ok(change(pair.ok_or_else(|| unknown_qp(to))?)?)
    }

    /// Lets a raw packet queue pair receive the frames of a flow.
    pub(in crate::provider::soft) fn add_flow(&self, qpn: Qpn, rule: FlowRule) -> Result<FlowId> {
        let mut engine = self.lock();
        engine.check_alive()?;
        let Some(packets) = self.socket.packets() else {
            return Err(unknown_qp(State::ReadyToReceive));
        };
        let added = engine.packets.add_flow(packets, qpn, rule);
        drop(engine);
        // It may sleep without the packet socket.
        self.wake();
        added
    }

    pub(in crate::provider::soft) fn remove_flow(&self, id: FlowId) {
        if let Some(packets) = self.socket.packets() {
            self.lock().packets.remove_flow(packets, id);
        }
    }

    pub(in crate::provider::soft) fn qp_to_error(&self, qpn: Qpn) {
        let mut engine = self.lock();
        engine.acknowledge(qpn, &self.device.regions.read(self.shard));
        if let Some(qp) = engine.schedule(qpn) {
            qp.roce.enter_error();
        }
        self.send_now(engine, self.clock().now());
    }
}
