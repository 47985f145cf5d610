"""Reading files of JSON, CSV and Parquet so that no row is lost, altered or invented without being told."""
