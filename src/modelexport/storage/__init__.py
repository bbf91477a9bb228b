"""Files: written all or nothing, read under limits, with the hierarchy in three stores."""
