// Imported by its path from the folder of the configuration file.
export const again = "again";
