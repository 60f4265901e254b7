//! Resources that a client subscribed to: it is told when one says something else.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rmcp::model::ResourceUpdatedNotificationParam;
use rmcp::{Peer, RoleServer};

use super::context::Shared;
use super::resources::{self, Resource};

/// Between two looks, and so between two messages about a resource.
const LOOK: Duration = Duration::from_secs(1);

/// What a client subscribed to, with the version that it was told of.
#[derive(Debug, Clone, Default)]
pub(super) struct Subscriptions(Arc<Mutex<Subscribed>>);

#[derive(Debug, Default)]
struct Subscribed {
    versions: BTreeMap<&'static str, Option<u64>>,
    /// A task looks.
    is_watched: bool,
}

fn lock(subscribed: &Mutex<Subscribed>) -> MutexGuard<'_, Subscribed> {
    subscribed.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Subscriptions {
    /// Adds a resource; the client knows this version of it.
    pub(super) fn add(
        &self,
        resource: &'static Resource,
        version: Option<u64>,
        shared: Arc<Shared>,
        peer: Peer<RoleServer>,
    ) {
        let mut subscribed = lock(&self.0);
        subscribed.versions.entry(resource.uri).or_insert(version);
        if !std::mem::replace(&mut subscribed.is_watched, true) {
            tokio::spawn(watch(Arc::downgrade(&self.0), shared, peer));
        }
    }

    /// Removes one.
    pub(super) fn remove(&self, resource: &Resource) {
        lock(&self.0).versions.remove(resource.uri);
    }
}

/// Looks until the client has gone or subscribes to nothing.
async fn watch(subscriptions: Weak<Mutex<Subscribed>>, shared: Arc<Shared>, peer: Peer<RoleServer>) {
    loop {
        let Some(strong) = subscriptions.upgrade().filter(|_| !peer.is_transport_closed()) else { return };
        let uris: Vec<&'static str> = {
            let mut subscribed = lock(&strong);
            subscribed.is_watched = !subscribed.versions.is_empty();
            subscribed.versions.keys().copied().collect()
        };
        if uris.is_empty() {
            return;
        }
        let of = Arc::clone(&shared);
        let looked = tokio::task::spawn_blocking(move || {
            uris.into_iter().filter_map(|uri| Some((uri, resources::find(uri)?.version(&of)))).collect::<Vec<_>>()
        });
        let mut changed = Vec::new();
        for (uri, version) in looked.await.unwrap_or_default() {
            if let Some(told) = lock(&strong).versions.get_mut(uri) {
                // Without a version, the first look tells nothing new.
                if told.replace(version).is_some_and(|before| before != version) {
                    changed.push(uri);
                }
            }
        }
        drop(strong);
        for uri in changed {
            if peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
