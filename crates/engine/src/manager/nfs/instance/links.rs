// SPDX-License-Identifier: Apache-2.0
//! Links of NF threads with workers, one for each pair. In: NFs and workers that come and go. Out: commands to the
//! workers, and free numbers of links.

use std::collections::BTreeMap;
use std::sync::Arc;

use netvm_region::NotifyMode;
use rustix::io::Errno;

use super::InstanceState;
use crate::ids::{GroupId, InstanceId, LinkId, WorkerId};
use crate::inflight::ThreadInFlight;
use crate::link::{Link, LinkParts, MAX_LINKS};
use crate::manager::cores::CoresError;
use crate::manager::nfs::Nfs;
use crate::manager::workers::Workers;
use crate::worker::Command;

impl Nfs {
    /// Link ids that no instance, teardown or reset uses.
    fn unused_links(&self) -> impl Iterator<Item = LinkId> + use<> {
        let mut used = [false; MAX_LINKS];
        self.linked().flat_map(|nf| nf.links.iter().flatten()).for_each(|link| used[link.index()] = true);
        (0..MAX_LINKS).filter(move |link| !used[*link]).map(|link| LinkId(link as u16))
    }

    /// Unused link ids for a new instance of a group. Leaves every other group its equal share of all links.
    pub(super) fn free_links(&self, group: GroupId) -> impl Iterator<Item = LinkId> + use<> {
        let mut by_group: BTreeMap<GroupId, usize> = self.groups.keys().map(|id| (*id, 0)).collect();
        for instance in self.linked() {
            let links: usize = instance.links.iter().map(Vec::len).sum();
            *by_group.entry(instance.group).or_default() += links;
        }
        self.unused_links().take(unreserved(&by_group, group))
    }

    /// Gives a worker its links with the threads of an activated NF.
    pub(super) fn connect(&self, id: InstanceId, worker: WorkerId, workers: &mut Workers) {
        let Some(instance) = self.instances.get(&id) else { return };
        let Some(group) = self.groups.get(&instance.group) else { return };
        let memories = workers.local(group.memories());
        let Some(memory) = memories.get(worker.index()) else { return };
        let poll_only = instance.guest == Some(NotifyMode::Poll);
        for (thread, (nf_thread, links)) in (0u16..).zip(instance.nf_threads.iter().zip(&instance.links)) {
            let Some(id) = links.get(worker.index()).copied() else { continue };
            let control = Arc::clone(&instance.control);
            // SAFETY: the engine's only ends of these rings: each worker is connected once with each instance, a worker
            // that ended has retired its ends before its number is used again, and the link keeps the control memory
            // mapped.
            let (to_nf, from_nf, stock) = unsafe {
                let ring_to = control.ring_to_nf(thread, worker.0.into());
                let ring_from = control.ring_from_nf(thread, worker.0.into());
                let of_buffers = control.ring_of_buffers(thread, worker.0.into());
                (ring_to.producer(), ring_from.consumer(), of_buffers.map(|ring| ring.producer()))
            };
            let in_flight = ThreadInFlight::new(id, *nf_thread, Arc::clone(&memory.in_flight));
            let in_flight = in_flight.with_quota(control.quota().most());
            let link = Link::new(LinkParts {
                id,
                group: group.id(),
                role: instance.role,
                memory: memory.id,
                to_nf,
                from_nf,
                stock,
                wake: Arc::clone(&group.wakes[nf_thread.index()]),
                poll_only,
                control,
            });
            workers.send(worker, Command::AddLink(Box::new(link), in_flight));
        }
    }

    /// A link for each NF thread with one more worker.
    pub(crate) fn links_for_worker(&self) -> Result<Vec<LinkId>, CoresError> {
        let wanted: usize = self.instances.values().map(|instance| instance.links.len()).sum();
        let links: Vec<LinkId> = self.unused_links().take(wanted).collect();
        if links.len() < wanted {
            return Err(CoresError::Links { wanted, left: links.len() });
        }
        Ok(links)
    }

    /// NFs can wake a new worker from now on.
    pub(crate) fn watch(&mut self, worker: WorkerId, workers: &Workers) -> Result<(), Errno> {
        let Some(waiter) = workers.waiter(worker) else { return Ok(()) };
        let watched = self.groups.values_mut().try_for_each(|group| group.watch(worker, waiter));
        if watched.is_err() {
            self.groups.values_mut().for_each(|group| group.forget(worker));
        }
        watched
    }

    /// Gives a new worker these links with all NF threads, and tells NFs of the worker.
    pub(crate) fn add_worker(&mut self, worker: WorkerId, links: Vec<LinkId>, workers: &mut Workers) {
        let mut links = links.into_iter();
        for instance in self.instances.values_mut() {
            let of_threads = instance.links.iter_mut().zip(&mut instance.before);
            for ((of_thread, before), link) in of_threads.zip(&mut links) {
                *before = before.with(&workers.link_sums_on(worker, link));
                of_thread.push(link);
            }
        }
        self.announce_workers(workers);
        let activated = self.instances.values().filter(|nf| nf.state != InstanceState::Attaching);
        for id in activated.map(|nf| nf.id).collect::<Vec<_>>() {
            self.connect(id, worker, workers);
        }
    }

    /// Removes the links of a worker that is to end.
    pub(crate) fn remove_links_of(&self, worker: WorkerId, workers: &mut Workers) {
        let threads = self.instances.values().flat_map(|instance| &instance.links);
        for link in threads.filter_map(|links| links.get(worker.index())) {
            workers.send(worker, Command::RemoveLink(*link));
        }
    }

    /// Forgets a worker that has returned its links, and keeps their counts: other NFs may get the links.
    pub(crate) fn remove_worker(&mut self, worker: WorkerId, workers: &Workers) {
        for instance in self.instances.values_mut() {
            for (links, past) in instance.links.iter_mut().zip(&mut instance.past) {
                if let Some(link) = links.get(worker.index()).copied() {
                    *past = past.with(&workers.link_sums_on(worker, link));
                    links.truncate(worker.index());
                }
            }
        }
        self.groups.values_mut().for_each(|group| group.forget(worker));
    }

    /// Tells NFs that workers from number `staying` on are about to end, so that they return the buffers that they keep
    /// of these.
    pub(crate) fn announce_staying(&mut self, staying: usize) {
        for instance in self.instances.values() {
            instance.control.set_staying(staying as u16);
        }
        for group in self.groups.values_mut() {
            group.publish(&self.signaller);
        }
    }

    /// Tells NFs which workers there are. They look when they get a new table.
    pub(crate) fn announce_workers(&mut self, workers: &Workers) {
        for instance in self.instances.values() {
            instance.control.set_workers(workers.regions());
        }
        for group in self.groups.values_mut() {
            group.publish(&self.signaller);
        }
    }

    /// For each link of a worker, the link of another one with the same NF thread.
    pub(crate) fn links_between(&self, from: WorkerId, to: WorkerId) -> BTreeMap<LinkId, LinkId> {
        let threads = self.instances.values().flat_map(|instance| &instance.links);
        threads.filter_map(|links| Some((*links.get(from.index())?, *links.get(to.index())?))).collect()
    }
}

/// Number of further links for a group, such that every other group can still get an equal share. `used`: links by
/// group.
fn unreserved(used: &BTreeMap<GroupId, usize>, group: GroupId) -> usize {
    let share = MAX_LINKS / used.len().max(1);
    let others = used.iter().filter(|(other, _)| **other != group);
    let reserved: usize = others.map(|(_, used)| share.max(*used)).sum();
    MAX_LINKS.saturating_sub(reserved).saturating_sub(used.get(&group).copied().unwrap_or_default())
}

const _: () = assert!(MAX_LINKS <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_leaves_the_others_their_share_of_links() {
        let (one, two, three) = (GroupId(1), GroupId(2), GroupId(3));
        assert_eq!(unreserved(&BTreeMap::from([(one, 0)]), one), MAX_LINKS);
        let used = BTreeMap::from([(one, MAX_LINKS / 2), (two, 0)]);
        assert_eq!((unreserved(&used, one), unreserved(&used, two)), (0, MAX_LINKS / 2));
        // A group that came later gets its share when the others have given links back.
        let used = BTreeMap::from([(one, MAX_LINKS / 2), (two, MAX_LINKS / 2), (three, 0)]);
        assert_eq!(unreserved(&used, three), 0);
        let used = BTreeMap::from([(one, MAX_LINKS / 2), (two, 10), (three, 0)]);
        assert_eq!(unreserved(&used, three), MAX_LINKS / 2 - MAX_LINKS / 3);
    }
}
