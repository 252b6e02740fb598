//! The view of a process that the HTTP door shows, and the pages of this view.

/// The information that a process shows over HTTP. The server's threads call these methods, which may wait a
/// little.
pub trait AdminView: Send + Sync + 'static {
    /// Returns the process's name and role, for people.
    fn name(&self) -> String;
    /// Returns `Ok` if the process can do its work, otherwise the reason why it cannot.
    fn health(&self) -> Result<(), String>;
    /// Returns the process's status: one JSON object.
    fn status(&self) -> String;
    /// Returns the process's metrics, in Prometheus' text format.
    fn metrics(&self) -> String;
    /// Returns the rows and bytes of the process's tables: a JSON list, empty if the process holds no tables.
    fn tables(&self) -> String {
        String::from("[]")
    }
    /// Returns the process groups of the domain: a JSON list, empty if the process knows no groups.
    fn groups(&self) -> String {
        String::from("[]")
    }
    /// Returns the latest operations of the process's clients: a JSON object, or `None` if the process
    /// records no operations.
    fn recent(&self) -> Option<String> {
        None
    }
    /// Whether the process has something to show in `view`. The page at `/` has links only to such views.
    fn has(&self, view: AdminPage) -> bool {
        matches!(view, AdminPage::Health | AdminPage::Status | AdminPage::Metrics)
    }
    /// Carries out an operation, given as JSON. Returns the process's status after the operation, or the
    /// reason why the operation failed.
    fn operate(&self, operation: &str) -> Result<String, String>;
}

/// A page of the HTTP door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminPage {
    /// `/health`.
    Health,
    /// `/status`.
    Status,
    /// `/metrics`.
    Metrics,
    /// `/tables`.
    Tables,
    /// `/groups`.
    Groups,
    /// `/recent`.
    Recent,
}

impl AdminPage {
    pub(super) const ALL: [AdminPage; 6] = [
        AdminPage::Health,
        AdminPage::Status,
        AdminPage::Metrics,
        AdminPage::Tables,
        AdminPage::Groups,
        AdminPage::Recent,
    ];

    pub(super) fn path(self) -> &'static str {
        match self {
            AdminPage::Health => "health",
            AdminPage::Status => "status",
            AdminPage::Metrics => "metrics",
            AdminPage::Tables => "tables",
            AdminPage::Groups => "groups",
            AdminPage::Recent => "recent",
        }
    }

    pub(super) fn describes(self) -> &'static str {
        match self {
            AdminPage::Health => "whether this process can do its work: HTTP status 200 or 503",
            AdminPage::Status => "the state of this process, in JSON",
            AdminPage::Metrics => "the metrics of this process, for Prometheus",
            AdminPage::Tables => "rows and bytes of each table that this process holds, in JSON",
            AdminPage::Groups => "the process groups of the domain, in JSON",
            AdminPage::Recent => "the operations of this cell's clients in the last minute, in JSON",
        }
    }
}
