//! One process of a cluster, still pure: its roles wired together.
