"""Tools that explain a kernel's time: profiles, hardware counters, PTX and SASS, occupancy."""
