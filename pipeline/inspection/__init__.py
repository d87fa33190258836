"""Why a kernel takes as long as it does: profiles, counters, PTX and SASS, occupancy."""
