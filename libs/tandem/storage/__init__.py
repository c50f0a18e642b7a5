"""A blob store over fsspec, the shard and manifest formats, atomic commit, verified reading. No torch."""

from tandem.storage.adapter_files import adapter_files, check_base, parse_adapter_config, parse_object
from tandem.storage.blobs import BlobStore
from tandem.storage.hashing import measure, read_pieces
from tandem.storage.identity import check_same_run, identify
from tandem.storage.incoming import Receiver, Staging, check_complete
from tandem.storage.join import WINDOW_BYTES, joined_pieces, plan_join
from tandem.storage.lease import Lease, acquire
from tandem.storage.local import sync_folder
from tandem.storage.manifest import CONFIG_FILE, MANIFEST, METADATA_FILE, TENSOR_FILE, FileEntry, Manifest, version_path
from tandem.storage.marks import add_scores, pin, read_scores, survey
from tandem.storage.places import check_place
from tandem.storage.problems import explained
from tandem.storage.readers import latest, open_tensors, read_adapter, read_manifest, read_metadata
from tandem.storage.retention import Key, Retention, Stored, best_unknown, to_remove
from tandem.storage.shards import CHUNK_BYTES, OpenShard, Placement, Shard, ShardMeta, read_shard
from tandem.storage.spool import shard_name, spool_folder, write_shard
from tandem.storage.versions import Published, VersionStore, check_entry

__all__ = [
    "CHUNK_BYTES",
    "CONFIG_FILE",
    "MANIFEST",
    "METADATA_FILE",
    "TENSOR_FILE",
    "WINDOW_BYTES",
    "BlobStore",
    "FileEntry",
    "Key",
    "Lease",
    "Manifest",
    "OpenShard",
    "Placement",
    "Published",
    "Receiver",
    "Retention",
    "Shard",
    "ShardMeta",
    "Staging",
    "Stored",
    "VersionStore",
    "acquire",
    "adapter_files",
    "add_scores",
    "best_unknown",
    "check_base",
    "check_complete",
    "check_entry",
    "check_place",
    "check_same_run",
    "explained",
    "identify",
    "joined_pieces",
    "latest",
    "measure",
    "open_tensors",
    "parse_adapter_config",
    "parse_object",
    "pin",
    "plan_join",
    "read_adapter",
    "read_manifest",
    "read_metadata",
    "read_pieces",
    "read_scores",
    "read_shard",
    "shard_name",
    "spool_folder",
    "survey",
    "sync_folder",
    "to_remove",
    "version_path",
    "write_shard",
]
